"""Self-test: a pattern travels from scratch seats here to scratch seats of a peer, as KV cache would.

Seats are taken on both sides by the engine's own RECEIVE: they are pinned, never computed and never in the prefix
cache, so serving goes on beside it. The peer's are given back once our WRITE has ended, or once the peer has found our
process gone; never by a clock, because a posted WRITE cannot be recalled.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from asyncio import Future, Task
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TypeVar

import httpx
import msgspec

from engine_shim.core.fates import Address, Fate
from engine_shim.core.transfer_plan import Side, plan_transfer
from engine_shim.driver.hand_over import HandOver
from engine_shim.driver.handshake import PeerCard
from engine_shim.driver.pattern import count_wrong_bytes, write_pattern
from engine_shim.driver.self_test_calls import (
    CHECK_PATH,
    LEND_PATH,
    RETURN_PATH,
    SCRATCH,
    Check,
    Checked,
    Lend,
    Lent,
    Return,
    Returned,
    Run,
    Verdict,
)
from engine_shim.engine.port import Engine, EngineRunner, Purpose, SamplingParams, Seated, SequenceRequest
from router.contract.errors import BadRequest, HandshakeFailed, NoSeats, TandemError, TransferFailed
from router.contract.ids import EngineId
from router.contract.kv import BlockTable
from router.contract.seal import SEAL_HEADER, SELF_TEST, Seal

log = logging.getLogger("tandem.shim")

_Answer = TypeVar("_Answer", bound=msgspec.Struct)

SEATS_FOR_S = 3.0
"""Within which an engine must have seats to spare."""
WRITE_FOR_S = 10.0
SHARE = 8
"""At most this part of a cache is lent: one in eight blocks."""
GONE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """The peer to write to."""

    engine_id: EngineId
    address: Address


class SelfTest:
    """Lends scratch seats, and writes into those of peers."""

    def __init__(self, engine: Engine, thread: EngineRunner, hand_over: HandOver, seal: Seal) -> None:
        """Nothing is lent."""
        self._engine, self._thread, self._hand_over, self._seal = engine, thread, hand_over, seal
        self._peers = hand_over.peers
        self._client = httpx.AsyncClient(timeout=WRITE_FOR_S, trust_env=False)
        self._ids = itertools.count(1)
        self._seated: dict[str, Future[Seated]] = {}
        self._lent: dict[str, tuple[EngineId, BlockTable]] = {}
        self._returned: deque[str] = deque(maxlen=64)
        self._tasks: set[Task[None]] = set()

    @property
    def max_tokens(self) -> int:
        """Tokens of the largest scratch that this engine takes or lends."""
        layout = self._engine.layout
        return max(1, min(layout.num_blocks // SHARE * layout.block_tokens, self._engine.card.max_context_tokens - 2))

    async def aclose(self) -> None:
        """Nothing of it runs any more; what is lent stays so until the process ends."""
        for task in list(self._tasks):
            task.cancel()
        await self._client.aclose()

    def on_seated(self, event: Seated) -> bool:
        """True when these seats are scratch."""
        waiting = self._seated.pop(event.seq_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(event)
        return event.seq_id.startswith(SCRATCH)

    async def lend(self, wanted: Lend) -> Lent:
        """The borrower may write into these seats until it returns them.

        Raises:
            BadRequest: the borrower is no known peer, or wants more than is lent.
            NoSeats: the engine has none to spare.
        """
        borrower = EngineId(wanted.borrower)
        self._peers.find(borrower)
        if not 0 < wanted.num_tokens <= self.max_tokens:
            raise BadRequest(f"Between 1 and {self.max_tokens} tokens are lent here.")
        scratch_id = wanted.scratch_id
        if not scratch_id.startswith(SCRATCH) or scratch_id in self._lent or scratch_id in self._seated:
            raise BadRequest("A scratch_id begins with 'scratch:' and is used once.")
        blocks = await self._take(scratch_id, wanted.num_tokens)
        if scratch_id in self._returned:
            self._drop(scratch_id)
            raise BadRequest("These scratch seats have been returned before they were lent.")
        self._lent[scratch_id] = (borrower, blocks)
        self._count_lent()
        self._keep(self._await_return(scratch_id))
        return Lent(blocks)

    async def check(self, wanted: Check) -> Checked:
        """How much of the pattern is in lent seats. Raises BadRequest for seats that are not lent."""
        if wanted.scratch_id not in self._lent:
            raise BadRequest("These scratch seats are not lent (any more).")
        _, blocks = self._lent[wanted.scratch_id]
        region, layout = self._engine.region, self._engine.layout
        num_tokens = min(wanted.num_tokens, len(blocks) * layout.block_tokens)
        return Checked(await asyncio.to_thread(count_wrong_bytes, region, layout, blocks, num_tokens, wanted.seed))

    def take_return(self, returned: Return) -> None:
        """The seats are the engine's again; if they are still to be lent, they will not be."""
        self._returned.append(returned.scratch_id)
        if self._lent.pop(returned.scratch_id, None) is not None:
            self._drop(returned.scratch_id)
            self._count_lent()

    async def run(self, target: Target, sizes_bytes: tuple[int, ...]) -> Verdict:
        """Patterns of about these sizes have been written to the peer and checked there.

        Raises:
            HandshakeFailed, LayoutMismatch: the peer cannot be met, or lends nothing.
            NoSeats: this engine has no seats to spare.
            TransferFailed: a WRITE failed, or had not ended after WRITE_FOR_S.
        """
        began_at = time.perf_counter()
        peer = await self._peers.ensure(target.engine_id, target.address)
        handshake_s = time.perf_counter() - began_at
        token_bytes = self._engine.layout.token_bytes
        room = min(self.max_tokens, peer.layout.num_blocks // SHARE * peer.layout.block_tokens)
        tokens = sorted({min(room, max(1, size // token_bytes)) for size in sizes_bytes})
        return Verdict(handshake_s, tuple([await self._write(target, peer, count) for count in tokens]))

    async def _write(self, target: Target, peer: PeerCard, num_tokens: int) -> Run:
        """One WRITE of `num_tokens` tokens. Both seats go back, whatever becomes of it."""
        number = next(self._ids)
        source_id, scratch_id = f"{SCRATCH}{number}", f"{SCRATCH}{self._peers.card.engine_id}/{number}"
        blocks = await self._take(source_id, num_tokens)
        ended: Future[TandemError | None] = asyncio.get_running_loop().create_future()
        looked_at = asyncio.Event()
        self._keep(self._tidy(target, (source_id, scratch_id), ended, looked_at))
        try:
            return await self._measure(target, peer, (scratch_id, num_tokens, blocks), ended)
        finally:
            looked_at.set()

    async def _measure(
        self, target: Target, peer: PeerCard, scratch: tuple[str, int, BlockTable], ended: Future[TandemError | None]
    ) -> Run:
        """The WRITE has ended and been checked; `ended` is set once nothing of it can land."""
        scratch_id, num_tokens, blocks = scratch
        region, layout, seed = self._engine.region, self._engine.layout, secrets.randbits(62)
        try:
            lent = await self._call(target, LEND_PATH, Lend(scratch_id, self._peers.card.engine_id, num_tokens), Lent)
            await asyncio.to_thread(write_pattern, region, layout, blocks, num_tokens, seed)
            plan = plan_transfer(Side(layout, blocks), Side(peer.layout, lent.blocks), 0, num_tokens)
        except BaseException:
            ended.set_result(None)
            raise
        began_at = time.perf_counter()
        self._hand_over.copies.write(peer, plan, b"", ended.set_result)
        try:
            error = await asyncio.wait_for(asyncio.shield(ended), WRITE_FOR_S)
        except TimeoutError as late:
            raise TransferFailed(f"A WRITE to {target.engine_id} has not ended within {WRITE_FOR_S:g} s.") from late
        seconds = time.perf_counter() - began_at
        if error is not None:
            raise error
        checked = await self._call(target, CHECK_PATH, Check(scratch_id, num_tokens, seed), Checked)
        return Run(plan.num_bytes, len(plan.spans), seconds, checked.wrong_bytes)

    async def _tidy(
        self, target: Target, ids: tuple[str, str], ended: Future[TandemError | None], looked_at: asyncio.Event
    ) -> None:
        """Both seats go back once the WRITE has ended and nobody looks at them; the peer's as often as it takes."""
        source_id, scratch_id = ids
        await ended
        await looked_at.wait()
        self._drop(source_id)
        while not self._peers.is_buried(target.engine_id):
            try:
                await self._call(target, RETURN_PATH, Return(scratch_id), Returned)
                return
            except TandemError as error:
                log.warning("Scratch seats cannot be returned yet: %s", error.message)
                await asyncio.sleep(GONE_EVERY_S)

    async def _await_return(self, scratch_id: str) -> None:
        """The seats are returned, or their borrower's process is gone."""
        while scratch_id in self._lent:
            await asyncio.sleep(GONE_EVERY_S)
            if scratch_id in self._lent and self._peers.fate_of(self._lent[scratch_id][0]) is Fate.GONE:
                self.take_return(Return(scratch_id))

    async def _take(self, seq_id: str, num_tokens: int) -> BlockTable:
        """Pinned seats for `num_tokens` tokens. Raises NoSeats."""
        seated: Future[Seated] = asyncio.get_running_loop().create_future()
        self._seated[seq_id] = seated
        # Random tokens: what the prefix cache knows would need no seats.
        vocabulary = range(self._engine.card.vocab_size)
        prompt = tuple(secrets.choice(vocabulary) for _ in range(num_tokens + 1))
        try:
            await self._thread.add(SequenceRequest(seq_id, prompt, SamplingParams(max_tokens=1), Purpose.RECEIVE))
            async with asyncio.timeout(SEATS_FOR_S):
                event: Seated = await seated
        except TimeoutError as error:
            self._drop(seq_id)
            raise NoSeats(f"No seats came free within {SEATS_FOR_S:g} s; try again when it is less busy.") from error
        finally:
            self._seated.pop(seq_id, None)
        return event.seats

    def _count_lent(self) -> None:
        self._hand_over.num_lent = len(self._lent)
        self._hand_over.expect()

    def _drop(self, seq_id: str) -> None:
        self._thread.abort(seq_id)
        self._thread.unpin(seq_id)

    async def _call(self, target: Target, path: str, body: msgspec.Struct, answer: type[_Answer]) -> _Answer:
        """The peer's answer. Raises HandshakeFailed."""
        raw = msgspec.json.encode(body)
        headers = {SEAL_HEADER: self._seal.header(SELF_TEST + path.encode(), raw)}
        try:
            reply = await self._client.post(f"http://{target.address}{path}", content=raw, headers=headers)
        except httpx.HTTPError as error:
            raise HandshakeFailed(f"{target.engine_id} does not answer ({type(error).__name__}).") from error
        if reply.status_code != httpx.codes.OK:
            raise HandshakeFailed(f"{target.engine_id} refuses the self-test (status {reply.status_code}).")
        try:
            return msgspec.json.decode(reply.content, type=answer)
        except msgspec.DecodeError as error:
            raise HandshakeFailed(f"{target.engine_id} does not understand the self-test; update it.") from error

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
