"""Driver: joins the engine and the hand-over of KV cache on one event loop.

Everything that happens (an engine event, a fabric event, a request, a tick) is handled here to its end without waiting,
so the desks see one fact after the other. Nothing on this loop waits for a step, a copy or the store.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine_shim.driver.hand_over import Desks, EngineCalls, HandOver
from engine_shim.driver.recall import Recall, RecallRules
from engine_shim.driver.running import LOCAL, Running, decode_seq, local_seqs, prefill_seq, transfer_of
from engine_shim.driver.self_test import SelfTest
from engine_shim.driver.stream import Stream
from engine_shim.driver.taken_back import TakenBack
from engine_shim.engine.port import (
    Engine,
    EngineEvent,
    EngineLoad,
    EngineRunner,
    ModelCard,
    Prefilled,
    Prefilling,
    Purpose,
    Seated,
    SequenceFailed,
    SequenceRequest,
    TokensOut,
)
from engine_shim.engine.tokenizer import Tokenizer
from engine_shim.fabric.writer import FabricBroken, FabricEvent
from router.contract.errors import BadRequest, Draining, EngineDown, Impossible, StaleAttempt, TandemError
from router.contract.ids import TransferId
from router.contract.instance import Instance, KVIdentity, Load
from router.contract.rendezvous import JoinState, PrefillDone
from router.contract.wire import DecodeHandoff, Handoff, PrefillHandoff, answer_params

log = logging.getLogger("tandem.shim")

TICK_S = 0.25

RunEngine = Callable[
    [AbstractEventLoop, Callable[[list[EngineEvent]], None], Callable[[EngineDown], None]], EngineRunner
]
"""Makes the runner of an engine whose events, and whose end, are told on this loop."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts that a Driver works with; made by `build`."""

    card: ModelCard
    run_engine: RunEngine
    tokenizer: Tokenizer | None
    """None where the engine tokenizes by itself."""
    instance: Instance
    desks: Desks | None
    """None when this shim has no fabric: it then serves local mode only."""
    scratch: Engine | None = None
    """The engine whose memory self-tests may use."""
    recall: RecallRules | None = None
    """When KV comes back from decode; None: never."""


class Driver:
    """Serves sequences, with or without a hand-over of KV cache."""

    def __init__(self, bench: Bench) -> None:
        self.card = bench.card
        self._tokenizer = bench.tokenizer
        self.instance = bench.instance
        self.ready = True
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[EngineDown] = loop.create_future()
        """Done once nothing can be served any more; the process is to end, and be started again."""
        self._ids = itertools.count(1)
        self._taken_back = TakenBack()
        self._running = Running(loop, self._on_early_end)
        self._engine = bench.run_engine(loop, self.on_engine_events, self.on_down)
        self._desks = bench.desks
        self.hand_over = None if bench.desks is None else HandOver(bench.desks, self._engine_calls())
        self.self_test: SelfTest | None = None
        if self.hand_over is not None and bench.desks is not None and bench.scratch is not None:
            self.self_test = SelfTest(bench.scratch, self._engine, self.hand_over, bench.desks.seal)
        self.recall: Recall | None = None
        if bench.desks is not None and bench.recall is not None:
            self.recall = Recall(self._engine, self.submit, bench.desks.seal, bench.recall)
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The engine steps and the desks see time pass."""
        self._engine.start()
        self._ticking = asyncio.create_task(self._tick())

    async def aclose(self, grace_for_s: float = 0.0) -> None:
        """No new sequences; those that run have `grace_for_s` seconds, then they fail. All threads have ended."""
        self.ready = False
        ends_at = time.monotonic() + grace_for_s
        while (self._running or self.num_open_tickets) and time.monotonic() < ends_at:
            await asyncio.sleep(0.05)
        self._running.fail_all(Draining("This instance is shutting down; retry on another."))
        if self._ticking is not None:
            self._ticking.cancel()
        if self.self_test is not None:
            await self.self_test.aclose()
        if self.recall is not None:
            await self.recall.aclose()
        await asyncio.to_thread(self._engine.stop)
        if self.hand_over is not None and self._desks is not None:
            self.hand_over.say_left()
            await asyncio.to_thread(self._desks.writer.stop)
            await self.hand_over.peers.aclose()

    @property
    def tokenizer(self) -> Tokenizer:
        """The engine's tokenizer."""
        if self._tokenizer is None:
            raise Impossible("This engine tokenizes by itself.")
        return self._tokenizer

    @property
    def num_open_tickets(self) -> int:
        """Rendezvous that hold or want something on this instance."""
        return 0 if self.hand_over is None else self.hand_over.num_open_tickets

    def load(self) -> Load:
        """How busy this instance is."""
        engine = self._engine.load
        return Load(
            running_seqs=engine.running_seqs,
            waiting_seqs=engine.waiting_seqs + engine.parked_seqs,
            queued_prompt_tokens=engine.queued_prompt_tokens,
            free_blocks=engine.free_blocks,
            held_blocks=engine.held_blocks,
            quarantined_blocks=engine.quarantined_blocks,
            live_transfers=0 if self.hand_over is None else self.hand_over.copies.num_live,
            open_tickets=self.num_open_tickets,
        )

    def engine_load(self) -> EngineLoad:
        """How busy the engine is, as of its last step."""
        return self._engine.load

    async def submit(self, request: SequenceRequest, handoff: Handoff | None, deadline_for_s: float) -> Stream:
        """The sequence is queued; its output comes from the Stream.

        Raises:
            TandemError: nothing is queued and nothing is held. BadRequest, ContextTooLong, NoSeats as the engine
                says; HandshakeFailed, LayoutMismatch and PeerGone for a decode leg; StaleAttempt for a prefill leg
                that decode has cancelled already; Draining; EngineDown.
        """
        if self.ended.done():
            raise self.ended.result()
        if not self.ready:
            raise Draining("This instance is shutting down; retry on another.")
        if handoff is None:
            return await self._submit_local(request, deadline_for_s)
        if self.hand_over is None:
            raise BadRequest("This instance has no fabric and cannot hand KV cache over.", param="kv_transfer_params")
        if isinstance(handoff, PrefillHandoff) and handoff.keeper is not None and self.recall is not None:
            await self.recall.fetch(request.prompt, handoff.transfer_id, handoff.keeper)
        self._taken_back.check(handoff.transfer_id, time.monotonic())
        if isinstance(handoff, PrefillHandoff):
            if not self.hand_over.prefill.desk.on_leg(handoff.transfer_id, time.monotonic()):
                raise StaleAttempt("Decode has given this attempt up already.")
            request = self.hand_over.hold(replace(request, seq_id=prefill_seq(handoff.transfer_id)))
        else:
            await self._open_decode(self.hand_over, handoff)
            request = replace(request, seq_id=decode_seq(handoff.transfer_id), purpose=Purpose.RECEIVE)
        self.hand_over.expect()
        return await self._run(request, handoff, deadline_for_s)

    async def _submit_local(self, request: SequenceRequest, deadline_for_s: float) -> Stream:
        """`request.seq_id` begins with the id of the attempt, by which the router may take it back, and `#`."""
        self._taken_back.check(TransferId(request.seq_id.partition("#")[0]), time.monotonic())
        local = replace(request, seq_id=f"{LOCAL}{request.seq_id}#{next(self._ids)}")
        return await self._run(local, None, deadline_for_s)

    async def _open_decode(self, hand_over: HandOver, handoff: DecodeHandoff) -> None:
        """Prefill is known and the transfer awaited, unless it was taken back while the handshake was made.

        A leg that comes twice while the first one runs is refused before a ticket is opened that nobody would close.
        """
        if decode_seq(handoff.transfer_id) in self._running:
            raise StaleAttempt("This attempt runs here already; each one needs a fresh transfer_id.")
        await hand_over.decode.open(handoff)
        try:
            self._taken_back.check(handoff.transfer_id, time.monotonic())
        except StaleAttempt:
            hand_over.decode.on_left(handoff.transfer_id)
            raise

    def cancel(self, transfer_id: TransferId, reason: str) -> JoinState:
        """The router takes an attempt back, from prefill or decode; returns where the Rendezvous stands after that."""
        taken_back = StaleAttempt("The router has taken this attempt back.")
        self._taken_back.add(transfer_id, time.monotonic())
        self._running.fail(decode_seq(transfer_id), taken_back)
        self._running.fail_named(local_seqs(transfer_id), taken_back)
        if self.hand_over is None or not self.instance.role.prefills:
            return JoinState.EMPTY
        self._running.fail(prefill_seq(transfer_id), taken_back)
        self.hand_over.prefill.on_abandoned(transfer_id, reason)
        self.hand_over.expect()
        return self.hand_over.prefill.desk.state_of(transfer_id)

    def on_engine_events(self, events: list[EngineEvent]) -> None:
        """What one step of the engine brought."""
        for event in events:
            match event:
                case TokensOut():
                    self._running.push(event)
                case Prefilling(seq_id, blocks, num_tokens, num_layers):
                    if self.hand_over is not None:
                        self.hand_over.on_prefilling(PrefillDone(transfer_of(seq_id), blocks, num_tokens), num_layers)
                case Prefilled():
                    self._on_prefilled(event)
                case Seated(seq_id):
                    is_scratch = self.self_test is not None and self.self_test.on_seated(event)
                    self._running.seated(seq_id, time.monotonic())
                    if self.hand_over is not None and not is_scratch:
                        self.hand_over.decode.on_seated(transfer_of(seq_id), event)
                case SequenceFailed(seq_id, error):
                    self._running.fail(seq_id, error)
        if self.hand_over is not None:
            self.hand_over.expect()

    def on_fabric_event(self, event: FabricEvent) -> None:
        """What the writer thread saw."""
        if isinstance(event, FabricBroken):
            self.on_down(event.error)
        elif self.hand_over is not None:
            self.hand_over.on_fabric_event(event)

    async def _run(self, request: SequenceRequest, handoff: Handoff | None, deadline_for_s: float) -> Stream:
        stream = self._running.begin(request.seq_id, handoff)
        try:
            await self._engine.add(request)
        except (TandemError, asyncio.CancelledError):
            stream.close()
            raise
        self._running.set_deadline(request.seq_id, deadline_for_s)
        return stream

    def _on_prefilled(self, event: Prefilled) -> None:
        if self.hand_over is None:
            return
        done = PrefillDone(transfer_of(event.seq_id), event.blocks, event.num_tokens)
        self._running.answer(event.seq_id, answer_params(done, self._identity))
        # A leg that was taken back meanwhile is VOID: the table then answers with FreeKV.
        self.hand_over.on_prefilled(done)

    def _on_early_end(self, seq_id: str, handoff: Handoff | None, reason: str) -> None:
        """A sequence has ended early: the engine drops it, and its Rendezvous, if any, is given up."""
        self._engine.abort(seq_id)
        if self.hand_over is None or handoff is None:
            return
        if isinstance(handoff, DecodeHandoff):
            self.hand_over.decode.on_left(handoff.transfer_id)
        else:
            self.hand_over.prefill.on_leg_ended(handoff.transfer_id, reason)
        self.hand_over.expect()

    def _on_kv_ready(self, transfer_id: TransferId) -> None:
        self._running.kv_ready(decode_seq(transfer_id), time.monotonic())
        self._engine.kv_ready(decode_seq(transfer_id))

    def on_down(self, down: EngineDown) -> None:
        """Engine or fabric is gone: everybody is told, and `ended` is done."""
        self.ready = False
        if not self.ended.done():
            self.ended.set_result(down)
        self._running.fail_all(down)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.hand_over is not None:
                self.hand_over.on_tick()

    @property
    def _identity(self) -> KVIdentity:
        if self.instance.kv is None:
            raise BadRequest("This instance has no KV identity.", param="kv_transfer_params")
        return self.instance.kv

    def _engine_calls(self) -> EngineCalls:
        return EngineCalls(
            recompute=lambda transfer_id: self._engine.recompute(decode_seq(transfer_id)),
            unpin_prefill=lambda transfer_id: self._engine.unpin(prefill_seq(transfer_id)),
            unpin_decode=lambda transfer_id: self._engine.unpin(decode_seq(transfer_id)),
            kv_ready=self._on_kv_ready,
            fail_decode=lambda transfer_id, error: self._running.fail(decode_seq(transfer_id), error),
        )
