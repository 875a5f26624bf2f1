"""Acquaintances: the peers of one shim, with the real FateDesk; mirrors `engine_shim.driver.peers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine_shim.core.fates import (
    AccessEnded,
    Address,
    Call,
    CallPeer,
    Fate,
    FateClocks,
    FateDesk,
    FateEffect,
    PeerDied,
)
from engine_shim.simulation.messages import Hello
from engine_shim.simulation.network import Connection, Ending
from router.contract.errors import HandshakeFailed, PeerGone, TandemError
from router.contract.ids import EngineId

if TYPE_CHECKING:
    from engine_shim.simulation.shim import Shim

OnMet = Callable[[TandemError | None], None]


def instance_of(engine_id: EngineId) -> str:
    """The instance, which is the name of its host too."""
    return engine_id.partition("@")[0]


class Acquaintances:
    """Who can be reached, and what has become of each."""

    def __init__(self, shim: Shim) -> None:
        off, pace = shim.scene.off, shim.scene.pace
        settle_s = 0.0 if "settle_after_death" in off else pace.settle_s
        self._shim = shim
        self._fates = FateDesk(FateClocks(settle_for_s=settle_s))
        self._known: dict[EngineId, None] = {}
        self._calling: dict[EngineId, list[OnMet]] = {}

    def is_known(self, engine_id: EngineId) -> bool:
        """True when KV cache and notices can pass."""
        if "fence_by_epoch" in self._shim.scene.off:
            return bool(self.known_at(instance_of(engine_id)))
        return engine_id in self._known

    def fate_of(self, engine_id: EngineId) -> Fate | None:
        """What has become of it; None for a stranger."""
        return self._fates.fate_of(engine_id)

    def is_buried(self, engine_id: EngineId) -> bool:
        """True when its process is known to have ended."""
        return self.fate_of(engine_id) in (Fate.DEAD, Fate.GONE)

    def known(self) -> list[EngineId]:
        """Everyone who can be reached."""
        return list(self._known)

    def known_at(self, instance_id: str) -> list[EngineId]:
        """The starts of that instance that can be reached."""
        return [engine_id for engine_id in self._known if instance_of(engine_id) == instance_id]

    def ensure(self, engine_id: EngineId, on_met: OnMet) -> None:
        """`on_met` is called once: the peer is known on both sides, or why not."""
        if engine_id in self._known:
            on_met(None)
        elif self.is_buried(engine_id):
            on_met(PeerGone(f"{engine_id} has ended."))
        else:
            self._call(engine_id)
            self._calling[engine_id].append(on_met)

    def welcome(self, engine_id: EngineId) -> bool:
        """Somebody has introduced itself; False when it is refused."""
        if self.is_buried(engine_id) or not self._fates.on_met(engine_id, Address(instance_of(engine_id), 1)):
            return False
        self._known[engine_id] = None
        return True

    def on_fleet(self, partners: dict[str, EngineId]) -> None:
        """The fleet as the store knows it, by instance: meet who is new, doubt who is not listed."""
        for engine_id in list(self._known):
            if partners.get(instance_of(engine_id)) != engine_id:
                self._run(self._fates.on_doubted(engine_id, self._shim.scene.now))
        for engine_id in partners.values():
            if engine_id not in self._known:
                self.ensure(engine_id, lambda _: None)

    def on_lost(self, engine_id: EngineId) -> None:
        """A message to it failed."""
        if self._known.pop(engine_id, 0) is None:
            self._shim.tell(f"{engine_id} is LOST")
            self._shim.copies.drop(self._shim, engine_id)
        if "death_needs_proof" in self._shim.scene.off:
            self.on_death(engine_id, "silence")
        self._run(self._fates.on_lost(engine_id, self._shim.scene.now))

    def on_death(self, engine_id: EngineId, reason: str) -> None:
        """It says that it leaves for good."""
        self._run(self._fates.on_death(engine_id, reason))

    def on_tick(self) -> None:
        """Time has passed."""
        self._run(self._fates.on_tick(self._shim.scene.now))

    def on_called(self, engine_id: EngineId, call: Call) -> None:
        """A call has ended."""
        waiting = self._calling.pop(engine_id, [])
        error: TandemError | None = None
        if call is not Call.ANSWERED:
            error = HandshakeFailed(f"{engine_id}: {call}.")
        elif not self.welcome(engine_id):
            error = PeerGone(f"{engine_id} has ended.")
        self._run(self._fates.on_called(engine_id, call))
        for on_met in waiting:
            on_met(error)

    def _run(self, effects: Iterable[FateEffect]) -> None:
        for effect in effects:
            match effect:
                case CallPeer(engine_id, _):
                    self._call(engine_id)
                case PeerDied(engine_id, reason):
                    self._shim.tell(f"{engine_id} is DEAD ({reason})")
                    if self._known.pop(engine_id, 0) is None:
                        self._shim.copies.drop(self._shim, engine_id)
                    self._shim.on_peer_dead(engine_id)
                case AccessEnded(engine_id):
                    self._shim.tell(f"{engine_id} is GONE")
                    self._shim.on_access_ended(engine_id)

    def _call(self, engine_id: EngineId) -> None:
        if engine_id in self._calling:
            return
        self._calling[engine_id] = []
        scene = self._shim.scene
        greeting = Greeting(self._shim, engine_id)
        host = scene.network.host(instance_of(engine_id))
        scene.network.call(self._shim, host, Hello(self._shim.engine_id), greeting)
        scene.timeline.timer(scene.pace.handshake_s, self._shim, greeting.on_late)


class Greeting:
    """One call to a peer."""

    def __init__(self, shim: Shim, wanted: EngineId) -> None:
        self._shim = shim
        self._wanted = wanted
        self._over = False

    def on_message(self, connection: Connection, message: object) -> None:
        """Somebody has answered; anything but an introduction is a refusal of ours."""
        connection.finish()
        if not isinstance(message, Hello):
            self._end(Call.SILENT)
        else:
            self._end(Call.ANSWERED if message.engine_id == self._wanted else Call.ANOTHER)

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """Nobody has."""
        self._end(Call.REFUSED if ending is Ending.REFUSED else Call.SILENT)

    def on_late(self) -> None:
        """Nobody has in time."""
        self._end(Call.SILENT)

    def _end(self, call: Call) -> None:
        if not self._over:
            self._over = True
            self._shim.acquaintances.on_called(self._wanted, call)
