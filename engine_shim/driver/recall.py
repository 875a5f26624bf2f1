"""Recall: KV of a conversation's earlier turns comes back to prefill, from the decode engine that keeps it.

It is one more hand-over with the roles turned round, under an id of its own, of that part of the prompt which the
keeper's prefix cache holds, and one token:

    prefill's shim                                      the keeper's shim
    POST /kv/recall: the prompt, what is here  ──────►  what is kept? if it is more, a HOLD sequence of that part
    a RECEIVE sequence of that part            ◄──────  so many tokens
                                 Registered    ──────►
                                               ◄──────  WRITE, Tag
    the blocks are in the prefix cache; prefill's own sequence finds them there

Both sequences go ahead of those that wait: one needs a row of a batch, the other none. Leases, fences and Quarantine
are those of any hand-over, whoever dies. Whatever goes wrong, or lasts longer than `wait_for_s`, costs that time and is
counted: prefill then computes what is not there.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import msgspec

from engine_shim.driver.recall_calls import PATH, Kept, Wanted
from engine_shim.driver.stream import Stream
from engine_shim.engine.port import EngineRunner, SamplingParams, SequenceRequest
from router.contract.errors import TandemError, TransferFailed
from router.contract.hosts import authority
from router.contract.ids import TransferId
from router.contract.instance import Mode
from router.contract.seal import RECALL, SEAL_HEADER, Seal
from router.contract.wire import DecodeHandoff, Handoff, Keeper, PrefillHandoff, Waits

log = logging.getLogger("tandem.shim")

Submit = Callable[[SequenceRequest, Handoff | None, float], Awaitable[Stream]]
"""See Driver.submit."""

RESULTS = ("taken", "nothing", "failed")
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class RecallRules:
    """When KV is worth its way back."""

    least_tokens: int = 64
    """Fewer are computed."""
    wait_for_s: float = 2.0
    """Seconds after which all of a prompt that is not here is computed."""


class Recall:
    """Both sides of one shim."""

    def __init__(self, engine: EngineRunner, submit: Submit, seal: Seal, rules: RecallRules) -> None:
        self._engine, self._submit, self._seal, self._rules = engine, submit, seal, rules
        self._client = httpx.AsyncClient(timeout=rules.wait_for_s, trust_env=False)
        self._giving: set[Task[None]] = set()
        self.results: Counter[str] = Counter()
        """Prompts for which a keeper was named, by what came of it: RESULTS."""
        self.num_tokens = 0
        """Tokens whose KV has come back."""

    async def aclose(self) -> None:
        """Nothing of it runs any more."""
        for task in tuple(self._giving):
            task.cancel()
        await self._client.aclose()

    # Prefill's side.

    async def fetch(self, prompt: tuple[int, ...], transfer_id: TransferId, keeper: Keeper) -> None:
        """What the keeper has of this prompt, and this engine lacks, is in the prefix cache, if that is worth it."""
        try:
            async with asyncio.timeout(self._rules.wait_for_s):
                num_tokens = await self._fetch(prompt, recall_id(transfer_id), keeper)
        except (TandemError, TimeoutError) as error:
            self.results["failed"] += 1
            why = error.code if isinstance(error, TandemError) else f"not within {self._rules.wait_for_s:g} s"
            log.warning("%s: KV does not come back from %s (%s)", transfer_id, keeper.engine_id, why)
            return
        self.results["taken" if num_tokens else "nothing"] += 1
        self.num_tokens += num_tokens

    async def _fetch(self, prompt: tuple[int, ...], transfer_id: TransferId, keeper: Keeper) -> int:
        """Tokens that have come: none where all were here meanwhile, or were computed after all. Raises TandemError."""
        here = await self._engine.num_cached(prompt)
        if len(prompt) - here <= self._rules.least_tokens:
            return 0
        kept = await self._ask(Wanted(transfer_id, here, prompt), keeper)
        if kept.num_tokens <= here:
            return 0
        waits = Waits(self._rules.wait_for_s, self._rules.wait_for_s)
        handoff = DecodeHandoff(transfer_id, Mode.PUSH, keeper.engine_id, keeper.host, keeper.port, waits)
        part = SequenceRequest("", prompt[: kept.num_tokens + 1], _ONE_TOKEN, ahead=True)
        stream = await self._submit(part, handoff, self._rules.wait_for_s)
        try:
            await stream.wait_kv()
        finally:
            stream.close()
        return kept.num_tokens - here if stream.kv_ready_at else 0

    async def _ask(self, wanted: Wanted, keeper: Keeper) -> Kept:
        body = msgspec.json.encode(wanted)
        headers = {SEAL_HEADER: self._seal.header(RECALL, body)}
        try:
            where = authority(keeper.host, keeper.port)
            reply = await self._client.post(f"http://{where}{PATH}", content=body, headers=headers)
            if reply.status_code != httpx.codes.OK:
                raise TransferFailed(f"{keeper.engine_id} gives no KV back (status {reply.status_code}).")
            return msgspec.json.decode(reply.content, type=Kept)
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
            raise TransferFailed(f"{keeper.engine_id} gives no KV back ({type(error).__name__}).") from error

    # The keeper's side.

    async def give(self, wanted: Wanted) -> Kept:
        """What is kept here beyond what the other has is on its way to it as soon as it registers.

        Raises TandemError as Driver.submit.
        """
        kept = await self._engine.num_cached(wanted.prompt)
        if kept - wanted.num_cached < self._rules.least_tokens:
            return Kept(0)
        part = SequenceRequest("", wanted.prompt[: kept + 1], _ONE_TOKEN, ahead=True)
        handoff = PrefillHandoff(TransferId(wanted.transfer_id))
        stream = await self._submit(part, handoff, self._rules.wait_for_s)
        task = asyncio.create_task(_drain(stream))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)
        return Kept(kept)


async def _drain(stream: Stream) -> None:
    """The sequence has ended; its blocks are the Rendezvous's, which ends by itself."""
    try:
        async for _ in stream:
            pass
    except TandemError as error:
        log.warning("%s: KV that was to be given back is not (%s)", stream.seq_id, error.code)
    finally:
        stream.close()


def recall_id(transfer_id: TransferId) -> TransferId:
    """The id under which KV for this attempt's prompt comes back."""
    return TransferId(f"{transfer_id}.recall")
