"""Acquaintances: what one shim believes of its peers, and the calls by which it finds out.

A transport error or the end of a lease proves nothing: the peer is LOST and called again until it answers or there is
proof that its process is gone. Only then is it DEAD, and GONE when what it had sent has had the time to land.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from engine_shim.simulation.messages import Hello
from engine_shim.simulation.network import Connection, Ending
from router.contract.errors import HandshakeFailed, TandemError
from router.contract.ids import EngineId

if TYPE_CHECKING:
    from engine_shim.simulation.shim import Shim

OnMet = Callable[[TandemError | None], None]


class Fate(StrEnum):
    """What is known of a peer's process."""

    STRANGE = "STRANGE"
    MET = "MET"
    LOST = "LOST"
    DEAD = "DEAD"
    GONE = "GONE"


@dataclass(slots=True)
class Peer:
    """One start of one engine, as another sees it."""

    engine_id: EngineId
    fate: Fate = Fate.STRANGE
    waiting: list[OnMet] = field(default_factory=list)
    settled_s: float | None = None
    """For how long it has been DEAD, counted while we poll; None until the first look at it."""
    called_at: float | None = None


class Acquaintances:
    """All peers of one shim."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self._peers: dict[EngineId, Peer] = {}

    def is_met(self, engine_id: EngineId) -> bool:
        """True when KV cache and notices can pass."""
        peer = self._peers.get(engine_id)
        return peer is not None and peer.fate is Fate.MET

    def is_buried(self, engine_id: EngineId) -> bool:
        """True when its process is known to be gone."""
        peer = self._peers.get(engine_id)
        return peer is not None and peer.fate in (Fate.DEAD, Fate.GONE)

    def met_at(self, instance_id: str) -> list[EngineId]:
        """The starts of that instance that are MET."""
        return [e for e, peer in self._peers.items() if peer.fate is Fate.MET and e.partition("@")[0] == instance_id]

    def ensure(self, engine_id: EngineId, on_met: OnMet) -> None:
        """`on_met` is called once: the peer is known on both sides, or why not."""
        peer = self._peers.setdefault(engine_id, Peer(engine_id))
        if peer.fate is Fate.MET:
            on_met(None)
        elif peer.fate in (Fate.DEAD, Fate.GONE):
            on_met(HandshakeFailed(f"{engine_id} is gone."))
        else:
            peer.waiting.append(on_met)
            self._call(peer)

    def on_hello(self, engine_id: EngineId) -> None:
        """Somebody has introduced itself."""
        peer = self._peers.setdefault(engine_id, Peer(engine_id))
        if peer.fate in (Fate.STRANGE, Fate.LOST):
            self._meet(peer)
        self._bury_older(engine_id)

    def on_trouble(self, engine_id: EngineId) -> None:
        """The transport has an error, or the fleet knows the peer no more."""
        peer = self._peers.get(engine_id)
        if peer is None or peer.fate is not Fate.MET:
            return
        if "death_needs_proof" in self._shim.scene.off:
            self._bury(peer)
            return
        peer.fate = Fate.LOST
        self._shim.tell(f"{engine_id} is LOST")
        self._call(peer)

    def on_fleet(self, live: dict[str, EngineId]) -> None:
        """The fleet as the store knows it, by instance: meet who is new, call who has left."""
        for engine_id in live.values():
            if self._peers.setdefault(engine_id, Peer(engine_id)).fate is Fate.STRANGE:
                self._call(self._peers[engine_id])
        for engine_id in list(self._peers):
            if live.get(engine_id.partition("@")[0]) != engine_id:
                self.on_trouble(engine_id)

    def on_tick(self, passed_s: float) -> None:
        """So much time has passed while this shim polled."""
        overdue_at = self._shim.scene.now - self._shim.scene.pace.connect_s
        for peer in list(self._peers.values()):
            if peer.called_at is not None and peer.called_at < overdue_at:
                self.on_no_answer(peer.engine_id, Ending.SILENT)
            if peer.fate is Fate.LOST:
                self._call(peer)
            elif peer.fate is Fate.DEAD:
                peer.settled_s = 0.0 if peer.settled_s is None else peer.settled_s + passed_s
                if peer.settled_s >= self._shim.settle_s:
                    peer.fate = Fate.GONE
                    self._shim.on_peer_gone(peer.engine_id)

    def on_answer(self, wanted: EngineId, found: EngineId) -> None:
        """At `wanted`'s address `found` has answered."""
        peer = self._peers[wanted]
        peer.called_at = None
        if wanted == found:
            if peer.fate in (Fate.STRANGE, Fate.LOST):
                self._meet(peer)
        else:
            self._bury(peer)

    def on_no_answer(self, wanted: EngineId, ending: Ending) -> None:
        """Nobody has answered at `wanted`'s address; a refusal proves that its process is gone."""
        peer = self._peers[wanted]
        peer.called_at = None
        if ending is Ending.REFUSED:
            self._bury(peer)
        else:
            self._answer(peer, HandshakeFailed(f"{wanted} does not answer."))

    def _meet(self, peer: Peer) -> None:
        peer.fate = Fate.MET
        self._answer(peer, None)

    def _bury(self, peer: Peer) -> None:
        if peer.fate in (Fate.DEAD, Fate.GONE):
            return
        peer.fate = Fate.DEAD
        self._shim.tell(f"{peer.engine_id} is DEAD")
        self._answer(peer, HandshakeFailed(f"{peer.engine_id} is gone."))
        self._shim.on_peer_dead(peer.engine_id)

    def _bury_older(self, engine_id: EngineId) -> None:
        instance_id, _, epoch = engine_id.partition("@")
        for peer in list(self._peers.values()):
            its_instance, _, its_epoch = peer.engine_id.partition("@")
            if its_instance == instance_id and int(its_epoch) < int(epoch):
                self._bury(peer)

    def _answer(self, peer: Peer, error: TandemError | None) -> None:
        waiting, peer.waiting = peer.waiting, []
        for on_met in waiting:
            on_met(error)

    def _call(self, peer: Peer) -> None:
        shim = self._shim
        if peer.called_at is not None:
            return
        peer.called_at = shim.scene.now
        host = shim.scene.network.host(peer.engine_id.partition("@")[0])
        shim.scene.network.call(shim, host, Hello(shim.engine_id), Greeting(shim, peer.engine_id))


class Greeting:
    """One call to a peer."""

    def __init__(self, shim: Shim, wanted: EngineId) -> None:
        self._shim = shim
        self._wanted = wanted
        self._over = False

    def on_message(self, connection: Connection, message: object) -> None:
        """The peer has introduced itself."""
        self._over = True
        connection.finish()
        if isinstance(message, Hello):
            self._shim.acquaintances.on_answer(self._wanted, message.engine_id)

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """Nobody has."""
        if not self._over:
            self._shim.acquaintances.on_no_answer(self._wanted, ending)
