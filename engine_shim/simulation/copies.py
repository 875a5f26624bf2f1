"""Copies: WRITEs and READs that take time, land piece by piece, fail in the middle, and outlive their mover a little.

What the Fabric port promises holds here too: once a mover has heard the end of a copy, nothing of it lands any more.
But a mover that is stopped may go on all the same (its network card does not stop), or not (its software does); and
what a dead mover had already sent may land up to DRAIN_S seconds later, when the target looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_shim.simulation.memory import ALL_LAYERS, BlockPool, Content, Copy
from engine_shim.simulation.network import Server
from engine_shim.simulation.scene import Scene
from engine_shim.simulation.story import Invariant, request_in
from router.contract.errors import TandemError, TransferFailed
from router.contract.ids import EngineId, TransferId

if TYPE_CHECKING:
    from engine_shim.simulation.shim import Shim

DRAIN_S = 0.8

OnEnd = Callable[[TandemError | None], None]


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """One WRITE (the mover's blocks go out) or READ (they come in)."""

    transfer_id: TransferId
    mover: Server
    peer: Server | None
    """Who lived at the peer's address; None when nobody did."""
    source: BlockPool
    target: BlockPool
    pieces: tuple[tuple[int, int], ...]
    on_end: OnEnd
    """Called in the mover, when nothing of it can land any more."""
    on_landed: Callable[[], None] | None = None
    """Called in the peer when all has landed: the tag."""
    layers: range = ALL_LAYERS
    """Of each block."""

    def contents(self, source: int) -> list[Content]:
        """What this block of prefill has to give."""
        return [content or (self.transfer_id, -1) for content in self.source.held(source, self.layers)]


@dataclass(eq=False, slots=True)
class _Running:
    order: CopyOrder
    copy: Copy
    piece_s: float
    by_card: bool
    fails_after: int
    num_done: int = 0
    ended: bool = False
    """Its mover has been told of its end."""
    orphaned: bool = False
    """Its mover has ended it, one way or another."""
    sent: list[list[Content]] = field(default_factory=list)
    """What is still under way of an orphaned WRITE, piece by piece."""


@dataclass(slots=True)
class Copies:
    """All copies of one world."""

    scene: Scene
    agents: dict[EngineId, Shim] = field(default_factory=dict)
    """The engines that live."""
    _running: dict[_Running, None] = field(default_factory=dict)

    def post(self, order: CopyOrder) -> None:
        """The copy has begun; its mover hears once how it ended."""
        scene = self.scene
        rng = scene.rng
        scene.on_moment("copying", order.mover.name)
        peer = order.peer
        if peer is None or peer.dead:
            self._tell(order, TransferFailed("The peer is dead."))
            return
        copy = Copy(order.transfer_id, order.source, order.target, list(order.pieces))
        fails_after = rng.randrange(len(order.pieces)) if rng.random() < scene.network.noise.failing else -1
        piece_s = rng.choice((0.0005, 0.003, 0.1, 0.6))
        running = _Running(order, copy, piece_s, rng.random() < 0.5, fails_after)
        self._running[running] = None
        scene.memory.live[copy] = None
        parted_s = max(0.0, scene.network.parted_until(order.mover.name, peer.name) - scene.now)
        scene.timeline.after(parted_s + piece_s, None, self._step, running)

    def find(self, engine_id: EngineId) -> Shim | None:
        """The engine of that start; without the fence, whichever start of its instance lives."""
        if "fence_by_epoch" in self.scene.off:
            instance_id = engine_id.partition("@")[0]
            return next((shim for shim in self.agents.values() if shim.name == instance_id), None)
        return self.agents.get(engine_id)

    def any_of(self, mover: Server) -> bool:
        """True while a copy of this mover runs."""
        return any(running.order.mover is mover and not running.orphaned for running in self._running)

    def on_killed(self, process: Server) -> None:
        """Copies of a dead mover end, though what it had sent may still land; towards a dead peer they fail."""
        for running in list(self._running):
            order = running.order
            if process is (order.mover if order.on_landed is None else order.peer):
                self._forget(running)
            elif process in (order.mover, order.peer) and not running.orphaned:
                self._orphan(running)
            if process is order.peer and not running.ended:
                self._end(running, TransferFailed("The peer died."))

    def break_between(self, one: str, other: str) -> None:
        """Copies between two hosts fail, as their connection has."""
        for running in list(self._running):
            order = running.order
            if order.peer is not None and {order.mover.name, order.peer.name} == {one, other}:
                self._fail(running, "The connection broke.")

    def drop(self, mover: Server, engine_id: EngineId) -> None:
        """The mover forgets this peer: its copies to and from it fail."""
        for running in list(self._running):
            if running.order.mover is mover and running.order.peer is self.agents.get(engine_id):
                self._fail(running, "The peer was dropped.")

    def _fail(self, running: _Running, why: str) -> None:
        if running.orphaned:
            return
        self._orphan(running)
        self._end(running, TransferFailed(why))

    def _orphan(self, running: _Running) -> None:
        """Its mover has ended it. Some bytes may be under way: they land when the target looks."""
        order = running.order
        target = order.mover if order.on_landed is None else order.peer
        if target is None or target.dead or self.scene.rng.random() < 0.4:
            self._forget(running)
            return
        running.orphaned = True
        # They have left prefill's blocks already.
        running.sent = [order.contents(source) for source, _ in running.copy.pieces]
        running.copy.source = None
        self.scene.timeline.after(DRAIN_S * self.scene.rng.random(), target, self._drain, running)

    def _step(self, running: _Running) -> None:
        order = running.order
        if running not in self._running or running.orphaned:
            return
        assert order.peer is not None
        for process in (order.mover, order.peer):
            if process.stopped and not running.by_card:
                process.piled.append((False, self._step, (running,)))
                return
        if running.num_done == running.fails_after:
            self._fail(running, "The copy failed.")
            return
        self._land(running)
        if running.copy.pieces:
            self.scene.timeline.after(running.piece_s, None, self._step, running)
            return
        self._forget(running)
        scene = self.scene
        if order.on_landed is not None and scene.rng.random() >= scene.network.noise.tag_lost:
            delay_s = scene.network.delay_s(order.mover.name, order.peer.name)
            scene.timeline.after(delay_s, order.peer, order.on_landed)
        self._end(running, None)

    def _drain(self, running: _Running) -> None:
        """The target takes what had been sent: some of it, or all."""
        if running not in self._running:
            return
        for _ in range(self.scene.rng.randint(1, len(running.copy.pieces))):
            self._land(running)
        self._forget(running)

    def _land(self, running: _Running) -> None:
        order, scene = running.order, self.scene
        source, target = running.copy.pieces.pop(0)
        running.num_done += 1
        owner = order.target.owner.get(target)
        if owner != order.transfer_id:
            what = f"bytes of {order.transfer_id} land in a seat of {owner or 'nobody'}"
            scene.violate(Invariant.SEATS_SAFE, request_in(order.transfer_id), what)
        sent = running.sent.pop(0) if running.orphaned else order.contents(source)
        order.target.put(target, sent, order.layers)

    def _forget(self, running: _Running) -> None:
        self._running.pop(running, None)
        self.scene.memory.live.pop(running.copy, None)

    def _end(self, running: _Running, error: TandemError | None) -> None:
        running.ended = True
        self._tell(running.order, error)

    def _tell(self, order: CopyOrder, error: TandemError | None) -> None:
        delay_s = 0.001 + 0.004 * self.scene.rng.random()
        self.scene.timeline.after(delay_s, order.mover, order.on_end, error)
