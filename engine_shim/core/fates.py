"""Fates: what has become of each peer, and when its access to our memory has ended.

    fate   means                                                       leaves when
    MET    a handshake has been made                                   it is lost or dead
    LOST   a message to it failed: it may be slow, cut off, or dead    a call is answered, or there is proof of death
    DEAD   there is proof that its process has ended                   it has been polled for `settle_for_s`
    GONE   what lay in buffers of the network has landed, too          never: an EngineId does not come back

LOST fails nobody. Proof of death is: its address refuses connections, another EngineId answers there, it has said Left,
or an operator has fenced it. Silence is no proof, however long: a stopped process may wake up and go on writing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine_shim.core.polled import PolledClock
from router.contract.hosts import authority
from router.contract.ids import EngineId


class Fate(StrEnum):
    """What has become of a peer."""

    MET = "met"
    LOST = "lost"
    DEAD = "dead"
    GONE = "gone"


class Call(StrEnum):
    """What a call to a peer's address has brought."""

    ANSWERED = "answered"
    """The same engine answers."""
    REFUSED = "refused"
    """Nobody listens there."""
    ANOTHER = "another"
    """Another engine answers."""
    SILENT = "silent"
    """No answer in time, or none that tells who is there."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer's side channel listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """As it stands in a URL."""
        return authority(self.host, self.port)


@dataclass(frozen=True, slots=True)
class CallPeer:
    """Make a handshake with this peer (again) and report what it brought."""

    engine_id: EngineId
    address: Address


@dataclass(frozen=True, slots=True)
class PeerDied:
    """Nobody need wait for this peer any more."""

    engine_id: EngineId
    reason: str


@dataclass(frozen=True, slots=True)
class AccessEnded:
    """Nothing of this peer can land in our memory any more."""

    engine_id: EngineId


FateEffect = CallPeer | PeerDied | AccessEnded


@dataclass(frozen=True, slots=True)
class FateClocks:
    """How often and how long, seconds."""

    call_every_s: float = 1.0
    doubt_every_s: float = 5.0
    settle_for_s: float = 1.0


@dataclass(slots=True)
class _Peer:
    engine_id: EngineId
    address: Address
    fate: Fate
    calling: bool = False
    called_at: float = float("-inf")
    settling_since: float | None = None
    """DEAD: polled seconds at the first tick after the death."""


class FateDesk:
    """All peers of one shim."""

    def __init__(self, clocks: FateClocks) -> None:
        self._clocks = clocks
        self._polled = PolledClock()
        self._peers: dict[EngineId, _Peer] = {}
        self._gone: dict[str, int] = {}
        """Highest epoch of each instance that is known to be gone."""

    def fate_of(self, engine_id: EngineId) -> Fate | None:
        """What has become of this peer; None when nobody has met it."""
        peer = self._peers.get(engine_id)
        if peer is not None:
            return peer.fate
        instance_id, epoch = _parts(engine_id)
        return Fate.GONE if self._gone.get(instance_id, -1) >= epoch else None

    def with_fate(self, fate: Fate) -> list[EngineId]:
        """Peers of this fate; GONE ones are not remembered one by one."""
        return [peer.engine_id for peer in self._peers.values() if peer.fate is fate]

    def on_met(self, engine_id: EngineId, address: Address) -> bool:
        """A handshake has been made with it. False: it is dead, and whoever calls himself so is refused."""
        if self.fate_of(engine_id) in (Fate.DEAD, Fate.GONE):
            return False
        known = self._peers.get(engine_id)
        if known is None:
            self._peers[engine_id] = _Peer(engine_id, address, Fate.MET)
        elif known.fate is Fate.LOST:
            known.fate = Fate.MET
        return True

    def on_lost(self, engine_id: EngineId, now: float) -> list[FateEffect]:
        """A message to it could not be sent, or a connection to it broke."""
        peer = self._peers.get(engine_id)
        if peer is None or peer.fate is not Fate.MET:
            return []
        peer.fate = Fate.LOST
        return self._call(peer, now)

    def on_doubted(self, engine_id: EngineId, now: float) -> list[FateEffect]:
        """The fleet does not list it (any more). It is called, and nothing else changes."""
        peer = self._peers.get(engine_id)
        if peer is None or peer.fate is not Fate.MET or now - peer.called_at < self._clocks.doubt_every_s:
            return []
        return self._call(peer, now)

    def on_called(self, engine_id: EngineId, call: Call) -> list[FateEffect]:
        """A call has ended."""
        peer = self._peers.get(engine_id)
        if peer is None:
            return []
        peer.calling = False
        if call is Call.ANSWERED:
            self.on_met(engine_id, peer.address)
        elif call is not Call.SILENT:
            return self.on_death(engine_id, f"call_{call}")
        return []

    def on_death(self, engine_id: EngineId, reason: str) -> list[FateEffect]:
        """There is proof that its process has ended, or it says so itself."""
        peer = self._peers.get(engine_id)
        if peer is None or peer.fate is Fate.DEAD:
            return []
        peer.fate = Fate.DEAD
        return [PeerDied(engine_id, reason)]

    def on_tick(self, now: float) -> list[FateEffect]:
        """Call the lost again; let the dead go."""
        effects: list[FateEffect] = []
        self._polled.tick(now)
        for peer in list(self._peers.values()):
            if peer.fate is Fate.LOST and now - peer.called_at >= self._clocks.call_every_s:
                effects += self._call(peer, now)
            elif peer.fate is Fate.DEAD:
                peer.settling_since, settled_s = self._polled.since(peer.settling_since)
                if settled_s >= self._clocks.settle_for_s:
                    effects.append(self._bury(peer))
        return effects

    def _bury(self, peer: _Peer) -> FateEffect:
        del self._peers[peer.engine_id]
        instance_id, epoch = _parts(peer.engine_id)
        self._gone[instance_id] = max(epoch, self._gone.get(instance_id, -1))
        return AccessEnded(peer.engine_id)

    def _call(self, peer: _Peer, now: float) -> list[FateEffect]:
        if peer.calling:
            return []
        peer.calling, peer.called_at = True, now
        return [CallPeer(peer.engine_id, peer.address)]


def _parts(engine_id: EngineId) -> tuple[str, int]:
    """Instance id and epoch of an EngineId (`instance@epoch`); an id of another form is its own epoch 0."""
    instance_id, _, epoch = engine_id.rpartition("@")
    return (instance_id, int(epoch)) if epoch.isdecimal() else (engine_id, 0)
