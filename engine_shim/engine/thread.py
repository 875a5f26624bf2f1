"""The one thread that owns the engine.

Verbs are queued and run between two steps; events come back on the event loop, one call per step. The engine's load is
copied after every step, so that reading it never waits for a step. Whoever waits for the answer to a verb hears of the
thread's end instead, when that comes first.
"""

from __future__ import annotations

import logging
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from engine_shim.engine.port import Engine, EngineEvent, EngineLoad, SequenceRequest
from engine_shim.loop_calls import call_on_loop, settle_on_loop
from engine_shim.step_gate import StepGate
from router.contract.errors import EngineDown, TandemError

log = logging.getLogger("tandem.engine")

Verb = Callable[[Engine], None]
T = TypeVar("T")


class EngineThread:
    """Steps an engine whenever it has work."""

    def __init__(
        self,
        engine: Engine,
        loop: AbstractEventLoop,
        on_events: Callable[[list[EngineEvent]], None],
        on_down: Callable[[EngineDown], None],
        gate: StepGate | None = None,
    ) -> None:
        """`gate`: steps pass through it; None where nobody else does."""
        self._engine = engine
        self._gate = gate
        self._loop = loop
        self._on_events = on_events
        self._on_down = on_down
        self._inbox: SimpleQueue[Verb | None] = SimpleQueue()
        # Any: each verb has an answer of its own type.
        self._replies: set[Future[Any]] = set()
        """Those that somebody waits for; the event loop's, as is the next one."""
        self._ended: EngineDown | None = None
        self._thread = threading.Thread(target=self._run, name="tandem-engine", daemon=True)
        self._load: EngineLoad = engine.load()
        engine.tell_early(lambda part: self._tell([part]))

    @property
    def load(self) -> EngineLoad:
        """As of the last step."""
        return self._load

    def start(self) -> None:
        """The thread runs."""
        self._thread.start()

    def stop(self, wait_for_s: float = 5.0) -> None:
        """The thread has ended after its current step."""
        self._inbox.put(None)
        self._thread.join(wait_for_s)

    async def add(self, request: SequenceRequest) -> None:
        """The sequence is queued. Raises what the engine raises, and EngineDown when there is none any more."""
        reply: Future[None] = self._loop.create_future()

        def verb(engine: Engine) -> None:
            try:
                engine.add(request)
                settle_on_loop(self._loop, reply, None)
            except TandemError as error:
                settle_on_loop(self._loop, reply, error)

        await self._ask(verb, reply)

    async def num_cached(self, prompt: tuple[int, ...]) -> int:
        """See Engine.num_cached. Raises EngineDown when there is no engine any more."""
        reply: Future[int] = self._loop.create_future()
        return await self._ask(lambda engine: settle_on_loop(self._loop, reply, engine.num_cached(prompt)), reply)

    async def _ask(self, verb: Verb, reply: Future[T]) -> T:
        """What the verb puts into `reply`."""
        if self._ended is not None:
            raise self._ended
        self._replies.add(reply)
        self._inbox.put(verb)
        try:
            return await reply
        finally:
            self._replies.discard(reply)

    def abort(self, seq_id: str) -> None:
        """See Engine.abort; takes effect before the next step."""
        self._inbox.put(lambda engine: engine.abort(seq_id))

    def kv_ready(self, seq_id: str) -> None:
        """See Engine.kv_ready."""
        self._inbox.put(lambda engine: engine.kv_ready(seq_id))

    def recompute(self, seq_id: str) -> None:
        """See Engine.recompute."""
        self._inbox.put(lambda engine: engine.recompute(seq_id))

    def unpin(self, seq_id: str) -> None:
        """See Engine.unpin."""
        self._inbox.put(lambda engine: engine.unpin(seq_id))

    def _run(self) -> None:
        down = EngineDown("The engine has been stopped; use another instance.")
        try:
            while self._take_verbs():
                if self._engine.has_work():
                    events = self._step()
                    if events:
                        self._tell(events)
                self._load = self._engine.load()
        except Exception as error:
            # The one boundary of this thread: an engine that raised out of its port cannot be trusted any more.
            log.exception("The engine stopped.")
            down = EngineDown(f"The engine stopped ({type(error).__name__}); this instance must be restarted.")
            call_on_loop(self._loop, lambda: self._on_down(down))
        call_on_loop(self._loop, lambda: self._end(down))

    def _end(self, down: EngineDown) -> None:
        self._ended = down
        for reply in tuple(self._replies):
            if not reply.done():
                reply.set_exception(down)

    def _step(self) -> list[EngineEvent]:
        if self._gate is None:
            return self._engine.step()
        with self._gate.step():
            return self._engine.step()

    def _take_verbs(self) -> bool:
        """Run all queued verbs; sleep first when there is nothing to step. False after stop."""
        try:
            verb = self._inbox.get(block=not self._engine.has_work())
            while True:
                if verb is None:
                    return False
                verb(self._engine)
                verb = self._inbox.get_nowait()
        except Empty:
            return True

    def _tell(self, events: list[EngineEvent]) -> None:
        call_on_loop(self._loop, lambda: self._on_events(events))
