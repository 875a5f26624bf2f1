"""Store: the fleet, the routers' leases and the ledger behind one address, with the semantics of the Lua scripts.

What it has stored outlives its process, unless a restart loses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from engine_shim.simulation.ledger import Ledger
from engine_shim.simulation.network import Connection, Ending, Host, Server
from engine_shim.simulation.scene import Scene
from router.contract.ids import Epoch, InstanceId
from router.contract.instance import Instance, Load
from router.contract.ledger import Entry, OpenTicket

CLAIM_S = 3.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One live instance in a snapshot of the fleet."""

    instance: Instance
    load: Load
    lease_left_s: float


@dataclass(slots=True)
class Shelf:
    """What is stored."""

    leases: dict[InstanceId, tuple[Instance, Load, float]] = field(default_factory=dict)
    epochs: dict[InstanceId, Epoch] = field(default_factory=dict)
    routers: dict[str, float] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)


class Store(Server):
    """One run of the store's server."""

    def __init__(self, scene: Scene, shelf: Shelf) -> None:
        super().__init__("store")
        self._scene = scene
        self.shelf = shelf

    # The network's side.

    def on_call(self, connection: Connection, message: object) -> None:
        """A verb is carried out as one step."""
        connection.server = self
        assert callable(message)
        connection.send(self, Reply(message(self)))

    def on_message(self, connection: Connection, message: object) -> None:
        """One call is one verb."""

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """The caller has left, or has its reply."""

    def on_notice(self, notice: object) -> None:
        """Nobody sends any here."""

    def on_unreachable(self, host: Host) -> None:
        """The store notifies nobody."""

    # The verbs.

    def beat(self, instance: Instance, load: Load) -> dict[InstanceId, Instance] | None:
        """The instance's lease is renewed, and who is there; None when a newer start has claimed its id."""
        shelf, now = self.shelf, self._scene.now
        if shelf.epochs.get(instance.instance_id, 0) > instance.epoch:
            return None
        shelf.epochs[instance.instance_id] = instance.epoch
        shelf.leases[instance.instance_id] = (instance, load, now + self._scene.pace.fleet_lease_s)
        return {seen.instance.instance_id: seen.instance for seen in self.fleet()}

    def fleet(self) -> list[Seen]:
        """Who has a lease."""
        now = self._scene.now
        leases = self.shelf.leases.values()
        return [Seen(instance, load, ends_at - now) for instance, load, ends_at in leases if ends_at > now]

    def renew(self, owner: str) -> tuple[dict[str, float], bool]:
        """The router's lease is renewed; the seconds that each known one has left, and whether its own was known."""
        now, routers = self._scene.now, self.shelf.routers
        remembered = owner in routers
        routers[owner] = now + self._scene.pace.router_lease_s
        return {name: ends_at - now for name, ends_at in routers.items()}, remembered

    def post(self, entries: Collection[Entry]) -> int:
        """The entries are put down; returns how many."""
        for entry in entries:
            self.shelf.ledger.put(entry, self._scene.now, self._scene.pace.overdue_s)
        return len(entries)

    def claim(self, gone: Collection[str]) -> tuple[list[OpenTicket], frozenset[str]]:
        """Tickets that are the caller's to end, and whose tickets are open and unclaimed."""
        ledger = self.shelf.ledger
        return ledger.claim(gone, self._scene.now, CLAIM_S), ledger.owners()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a verb has returned."""

    value: object


Verb = Callable[[Store], object]
