"""A Driver without an engine: it "generates" a given text, one token per byte, and remembers what was asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from engine_shim.core.fates import Fate
from engine_shim.core.meetings import Meetings
from engine_shim.core.prefill_effects import Walked
from engine_shim.core.push import Chunk
from engine_shim.core.traffic import Pushes, Traffic
from engine_shim.engine.port import (
    EngineLoad,
    FinishReason,
    ModelCard,
    SequenceRequest,
    TokenLogprob,
    TokensOut,
)
from engine_shim.engine.reference.text_stream import TextStream
from engine_shim.engine.reference.tokenizer import Tokenizer
from router.contract.errors import Draining, TandemError
from router.contract.ids import EngineId, Epoch, InstanceId, TransferId
from router.contract.instance import Instance, Load, Role
from router.contract.rendezvous import Arrival, JoinState
from router.contract.tags import OPEN
from tests.support.vocabularies import write_byte_level_gguf

MODEL = "byte-model"
CONTEXT_TOKENS = 128


def byte_tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer whose token ids 0..255 are the bytes."""
    write_byte_level_gguf(folder / "v.gguf")
    return Tokenizer.load(folder / "v.gguf")


class FakeStream:
    """Gives the outputs of one sequence; waits before each for the driver's gate."""

    def __init__(self, driver: FakeDriver, request: SequenceRequest, deadline_for_s: float) -> None:
        self.request = request
        self.deadline_for_s = deadline_for_s
        self.seated_at = self.kv_ready_at = 0.0
        self.answer: dict[str, object] | None = None
        self.closed = False
        self.finished = False
        self.num_given = 0
        self._driver = driver
        self._outputs = driver.outputs_of(request)

    def close(self) -> None:
        self.closed = True

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> TokensOut:
        if self.finished:
            raise StopAsyncIteration
        await self._driver.pass_gate(self.num_given)
        if self._driver.fails_after == self.num_given:
            raise self._driver.failure
        output = self._outputs[self.num_given]
        self.num_given += 1
        self.finished = output.finish_reason is not None
        if self.finished:
            self.answer = self._driver.answer
        return output


class FakeHandOver:
    """What metrics read of a HandOver."""

    num_orphaned_blocks = 16

    def __init__(self) -> None:
        self.peers = self.copies = self
        self.num_bytes_moved = 17
        self.traffic = Traffic()
        self.traffic.add(EngineId("d-0@3"), "WRITE", (4096, 2), 0.5)
        self.traffic.add(EngineId("d-0@4"), "WRITE", (4096, 2), 0.25)
        self.traffic.add(EngineId("d-0@4"), "WRITE", (4096, 2), None)
        self.prefill = SimpleNamespace(pushes=Pushes())
        self.prefill.pushes.add(Chunk(0, 16, 0, OPEN, early=True), 64)
        self.prefill.pushes.add(Chunk(16, 24, 1, 2, early=False), 32)
        self.meetings = Meetings()
        self.meetings.on_done(TransferId("t"), 1.0)
        for state, at in ((JoinState.MATCHED, 1.5), (JoinState.LANDED, 1.75)):
            self.meetings.on_walked(Walked(TransferId("t"), Arrival.REGISTERED, state, ""), at)

    def with_fate(self, fate: Fate) -> list[str]:
        return ["p@1", "p@2"] if fate is Fate.LOST else []

    def counts(self) -> dict[str, int]:
        return {"peer_lost": 2}


class FakeDriver:
    """Stands where `engine_shim.driver.Driver` stands."""

    def __init__(self, tokenizer: Tokenizer, text: str = "Hello wörld") -> None:
        self.tokenizer = tokenizer
        self.card = ModelCard(
            name=MODEL,
            family="llama",
            max_context_tokens=CONTEXT_TOKENS,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=tokenizer.eos_token_ids,
            weights_digest="d",
            created_unix_s=1_700_000_000,
        )
        self.instance = Instance(InstanceId("fake"), Role.BOTH, Epoch(1), "http://shim", MODEL, CONTEXT_TOKENS, None)
        self.ready = True
        self.hand_over = FakeHandOver()
        self.recall = SimpleNamespace(results=Counter({"taken": 2}), num_tokens=96)
        self.text = text
        self.answer: dict[str, object] | None = None
        self.refusal: TandemError | None = None
        """Raised by submit."""
        self.failure: TandemError | Exception = RuntimeError("unset")
        self.fails_after: int | None = None
        """Streams raise `failure` after so many outputs."""
        self.streams: list[FakeStream] = []
        self.handoffs: list[object] = []
        self.num_open_outputs = 10**9
        """Outputs of each stream that may pass the gate."""
        self._gate = asyncio.Condition()
        self.waiting_at_gate = asyncio.Event()

    def load(self) -> Load:
        running = sum(not (stream.closed or stream.finished) for stream in self.streams)
        return Load(running, 2, 3, 4, 5, 6, 7, open_tickets=8)

    def engine_load(self) -> EngineLoad:
        return EngineLoad(0, 0, 11, 0, 0, 12, 0, 0, 13, 14, 15)

    async def submit(self, request: SequenceRequest, handoff: object, deadline_for_s: float) -> FakeStream:
        if not self.ready:
            raise Draining("This instance is shutting down.")
        if self.refusal is not None:
            raise self.refusal
        self.handoffs.append(handoff)
        self.streams.append(FakeStream(self, request, deadline_for_s))
        return self.streams[-1]

    async def pass_gate(self, num_given: int) -> None:
        if num_given >= self.num_open_outputs:
            self.waiting_at_gate.set()
        async with self._gate:
            await self._gate.wait_for(lambda: num_given < self.num_open_outputs)

    async def open_gate(self, num_outputs: int = 10**9) -> None:
        async with self._gate:
            self.num_open_outputs = num_outputs
            self._gate.notify_all()

    def outputs_of(self, request: SequenceRequest) -> list[TokensOut]:
        sampling = request.sampling
        text = TextStream(self.tokenizer, sampling)
        outputs: list[TokensOut] = []
        ids = [*self.text.encode(), self.tokenizer.eos_token_ids[0]]
        for index, token_id in enumerate(ids, start=1):
            is_eos, is_last = index == len(ids), index == min(len(ids), sampling.max_tokens)
            delta = text.push([token_id], may_stop=index > sampling.min_tokens, finished=is_last)
            reason = FinishReason.STOP if delta.stop is not None or is_eos else None
            if reason is None and is_last:
                reason = FinishReason.LENGTH
            outputs.append(
                TokensOut(
                    seq_id=request.seq_id,
                    token_ids=(token_id,),
                    text=delta.text,
                    logprobs=_logprobs([token_id], sampling.logprobs),
                    finish_reason=reason,
                    stop_reason=delta.stop,
                    num_cached_tokens=1 if index == 1 else 0,
                    prompt_logprobs=_prompt_logprobs(request) if index == 1 else (),
                )
            )
            if reason is not None:
                break
        return outputs


def _logprobs(token_ids: list[int], wanted: int | None) -> tuple[TokenLogprob, ...]:
    """The chosen token has -0.5, the likeliest are tokens 65, 66, ... with -0.25, -0.5, ..."""
    if wanted is None:
        return ()
    top = tuple((65 + rank, -0.25 * (rank + 1)) for rank in range(wanted))
    return tuple(TokenLogprob(token_id, -0.5, top) for token_id in token_ids)


def _prompt_logprobs(request: SequenceRequest) -> tuple[TokenLogprob | None, ...]:
    wanted = request.sampling.prompt_logprobs
    if wanted is None:
        return ()
    return (None, *_logprobs(list(request.prompt[1:]), wanted))
