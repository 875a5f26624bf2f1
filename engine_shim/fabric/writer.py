"""The one thread that owns the Fabric.

Others put commands into its inbox; it answers by events, delivered on the event loop. It is also the Fabric's
progress: while anything is expected it polls every BUSY_POLL_S, else every IDLE_POLL_S, and a command wakes it at
once. One bad command or notice costs only its own sender: each is handled by itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol, assert_never

from engine_shim.fabric.port import CopyKey, CopyOrder, CopyState, Fabric, PeerName
from engine_shim.loop_calls import call_on_loop, settle_on_loop
from engine_shim.step_gate import StepGate
from router.contract.errors import EngineDown, PeerGone, TandemError, TransferFailed

log = logging.getLogger("tandem.fabric")

BUSY_POLL_S = 0.0002
IDLE_POLL_S = 0.005
LAST_POLLS = 50
"""Before the Fabric is closed: last notices are handed to the network by progress alone."""
BROKEN_AFTER_S = 5.0
"""A fabric that fails at every turn for so long will not come back: its GPU is lost, or its agent."""


@dataclass(frozen=True, slots=True)
class AddPeer:
    """Load a peer's metadata; `reply` gets its name or HandshakeFailed."""

    metadata: bytes
    reply: Future[PeerName]


@dataclass(frozen=True, slots=True)
class DropPeer:
    """Forget a peer."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class SendNotice:
    """Send bytes to a peer."""

    peer: PeerName
    notice: bytes


@dataclass(frozen=True, slots=True)
class Post:
    """Begin a copy; CopyEnded follows, always."""

    order: CopyOrder


@dataclass(frozen=True, slots=True)
class Expect:
    """Poll quickly from now on (count > 0), or at leisure (0)."""

    count: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread after closing the Fabric."""


Command = AddPeer | DropPeer | SendNotice | Post | Expect | Stop


@dataclass(frozen=True, slots=True)
class NoticeCame:
    """A notice from a peer."""

    peer: PeerName
    notice: bytes


@dataclass(frozen=True, slots=True)
class CopyEnded:
    """A posted copy is over; nothing of it lands any more. `error` is None when every byte arrived."""

    key: CopyKey
    error: TandemError | None


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The Fabric found the peer's process dead."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class FabricBroken:
    """The Fabric fails for good; what is under way never ends."""

    error: EngineDown


TransferEvent = NoticeCame | CopyEnded | PeerLost
FabricEvent = TransferEvent | FabricBroken


class Writer(Protocol):
    """Whoever owns the Fabric and obeys; its events come on the event loop that it was made with."""

    async def start(self) -> bytes:
        """It obeys from now on; returns the agent's metadata. Raises MissingDependency as the Fabric does."""

    def tell(self, command: Command) -> None:
        """Queue a command; never blocks."""

    async def add_peer(self, metadata: bytes) -> PeerName:
        """The peer can be reached. Raises HandshakeFailed."""

    def stop(self) -> None:
        """The Fabric is closed, or left to die with its process; may block for seconds."""


class WriterThread:
    """Runs a Fabric on a thread of its own."""

    def __init__(
        self,
        make_fabric: Callable[[], Fabric],
        loop: AbstractEventLoop,
        on_event: Callable[[FabricEvent], None],
        gate: StepGate | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            make_fabric: called on the thread: an agent must not be shared with the thread that made it.
            loop: where `on_event` is called.
            on_event: gets every event.
            gate: copies are posted between the steps of an engine; None: whenever they come.
        """
        self._gate = gate
        self._make_fabric = make_fabric
        self._loop = loop
        self._on_event = on_event
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._copies: dict[CopyKey, PeerName] = {}
        self._expected = 0
        self._failing_since: float | None = None
        self._ready: Future[bytes] = loop.create_future()
        self._thread = threading.Thread(target=self._run, name="tandem-writer", daemon=True)

    async def start(self) -> bytes:
        """The thread runs; returns the agent's metadata. Raises MissingDependency as the Fabric does."""
        self._thread.start()
        return await self._ready

    def tell(self, command: Command) -> None:
        """Queue a command; never blocks."""
        self._inbox.put(command)

    async def add_peer(self, metadata: bytes) -> PeerName:
        """The peer can be reached. Raises HandshakeFailed."""
        reply: Future[PeerName] = self._loop.create_future()
        self._inbox.put(AddPeer(metadata, reply))
        return await reply

    def stop(self, wait_for_s: float = 2.0) -> None:
        """The thread has ended and the Fabric is closed, or the thread is stuck and left to die with the process."""
        self._inbox.put(Stop())
        self._thread.join(wait_for_s)

    def _run(self) -> None:
        try:
            fabric = self._make_fabric()
            metadata = fabric.metadata()
        except TandemError as error:
            settle_on_loop(self._loop, self._ready, error)
            return
        settle_on_loop(self._loop, self._ready, metadata)
        try:
            while self._take_commands(fabric):
                self._advance(fabric)
        except Exception as error:
            # The one boundary of this thread: a command that failed so is lost, and whoever gave it waits for it.
            log.exception("The fabric broke.")
            self._tell_broken(error)
            return
        for _ in range(LAST_POLLS):
            self._advance(fabric)
            time.sleep(BUSY_POLL_S)
        fabric.close()

    def _take_commands(self, fabric: Fabric) -> bool:
        """Wait for the first command up to one poll interval, then take all; False after Stop."""
        busy = self._expected or self._copies
        try:
            command = self._inbox.get(timeout=BUSY_POLL_S if busy else IDLE_POLL_S)
            while True:
                if isinstance(command, Stop):
                    return False
                self._obey(fabric, command)
                command = self._inbox.get_nowait()
        except Empty:
            return True

    def _obey(self, fabric: Fabric, command: AddPeer | DropPeer | SendNotice | Post | Expect) -> None:
        match command:
            case AddPeer(metadata, reply):
                try:
                    settle_on_loop(self._loop, reply, fabric.add_peer(metadata))
                except TandemError as error:
                    settle_on_loop(self._loop, reply, error)
            case DropPeer(peer):
                fabric.drop_peer(peer)
            case SendNotice(peer, notice):
                try:
                    fabric.notify(peer, notice)
                except PeerGone:
                    self._tell_loop(PeerLost(peer))
            case Post(order):
                self._post(fabric, order)
            case Expect(count):
                self._expected = count
            case _:
                assert_never(command)

    def _post(self, fabric: Fabric, order: CopyOrder) -> None:
        try:
            with nullcontext() if self._gate is None else self._gate.between():
                state = fabric.post(order)
        except TandemError as error:
            self._tell_loop(CopyEnded(order.key, error))
            if isinstance(error, PeerGone):
                self._tell_loop(PeerLost(order.peer))
            return
        self._copies[order.key] = order.peer
        if state is not CopyState.BUSY:
            self._end(fabric, order.key, state)

    def _advance(self, fabric: Fabric) -> None:
        try:
            for peer, notice in fabric.advance():
                self._tell_loop(NoticeCame(peer, notice))
            for key in list(self._copies):
                state = fabric.poll(key)
                if state is not CopyState.BUSY:
                    self._end(fabric, key, state)
            self._failing_since = None
        except Exception as error:
            # The one boundary of a turn: an error that passes costs nobody anything.
            now = time.monotonic()
            if self._failing_since is None:
                log.exception("The fabric failed while advancing; going on.")
                self._failing_since = now
            elif now - self._failing_since > BROKEN_AFTER_S:
                self._tell_broken(error)
                self._failing_since = math.inf

    def _tell_broken(self, error: Exception) -> None:
        why = f"The fabric does not work any more ({type(error).__name__}); this instance must be restarted."
        self._tell_loop(FabricBroken(EngineDown(why)))

    def _end(self, fabric: Fabric, key: CopyKey, state: CopyState) -> None:
        peer = self._copies.pop(key)
        fabric.release(key)
        error = None if state is CopyState.DONE else TransferFailed(f"The copy to or from {peer} failed; retry.")
        self._tell_loop(CopyEnded(key, error))

    def _tell_loop(self, event: FabricEvent) -> None:
        call_on_loop(self._loop, lambda: self._on_event(event))
