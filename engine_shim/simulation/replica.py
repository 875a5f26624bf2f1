"""Replica: one start of one router, with the real placement, and the reaper that ends what dead replicas left open."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from engine_shim.simulation.exchange import Exchange
from engine_shim.simulation.journal import Journal
from engine_shim.simulation.messages import Ask, CancelCall
from engine_shim.simulation.network import Connection, Ending, Host, Server
from engine_shim.simulation.scene import Scene
from engine_shim.simulation.store import Seen
from router.contract.ids import InstanceId
from router.contract.instance import Instance, Mode
from router.contract.ledger import OpenTicket
from router.core.burden import Burdens
from router.core.fleet import EMPTY, Fleet, fold
from router.core.intake import Intake
from router.core.keepers import Keepers
from router.core.placement import Desk, Placement, Refusal, Rules
from router.core.recovery import Owners, closing, reason_of, whom_to_tell
from router.core.timing import Deadlines

MAX_ATTEMPTS = 2


class Replica(Server):
    """Routes requests until it is killed."""

    def __init__(self, scene: Scene, name: str, mode: Mode) -> None:
        super().__init__(name)
        pace = scene.pace
        self.scene = scene
        self.mode = mode
        self.owner = f"{name}#{scene.now:.3f}"
        self.max_attempts = MAX_ATTEMPTS
        self.hedge_after_s = scene.hedge_after_s
        """A prefill that is later than that gets a rival; inf: never."""
        self.deadlines = Deadlines(pace.prefill_s, 0.0, pace.first_token_s, pace.next_token_s, 5.0, pace.total_s)
        self.journal = Journal(scene, self)
        self.live: dict[Connection, Exchange] = {}
        keepers = Keepers() if scene.returns else None
        self._desk = Desk(Rules(mode, learns=scene.late is not None, late=scene.late, keepers=keepers))
        self._burdens = Burdens()
        self._fleet: Fleet = EMPTY
        self._named = False
        self._believed: list[Seen] = []
        self._doubted_until = 0.0
        self._leased = False
        self._turn = scene.rng.randrange(1000)
        self._owners = Owners(pace.router_lease_s, scene.now)

    def tell(self, what: str, request: str = "") -> None:
        """A line for the Story."""
        self.scene.tell(self.name, what, request)

    def start(self) -> None:
        """It looks at the fleet, renews its lease, and reaps."""
        self._look()
        self._reap()

    def place(self, intake: Intake, excluded: frozenset[InstanceId]) -> Placement | Refusal:
        """The instances for one attempt."""
        self._turn += 1
        return self._desk.choose(self._fleet, intake, self._turn, excluded)

    def complete(self, intake: Intake, placement: Placement, excluded: frozenset[InstanceId]) -> Placement | Refusal:
        """The placement with its decode, chosen late."""
        return self._desk.complete(self._fleet, intake, placement, excluded)

    def close(self, exchange: Exchange) -> None:
        """The exchange has its Outcome."""
        self.live.pop(exchange.client, None)
        exchange.client.close(self)

    def take_back(self, instance: Instance, call: CancelCall) -> None:
        """The engine is told, once, that an attempt is over."""
        self.scene.network.call(self, self.scene.network.host(instance.instance_id), call, _Nobody())

    # What comes in.

    def on_call(self, connection: Connection, message: object) -> None:
        """A client asks."""
        connection.server = self
        assert isinstance(message, Ask)
        exchange = self.live[connection] = Exchange(self, connection, message)
        exchange.open()

    def on_message(self, connection: Connection, message: object) -> None:
        """A client asks once for each connection."""

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """A client has left."""
        exchange = self.live.get(connection)
        if exchange is not None:
            exchange.on_client_gone()

    def on_notice(self, notice: object) -> None:
        """Nobody sends any here."""

    def on_unreachable(self, host: Host) -> None:
        """A router notifies nobody."""

    # Time.

    def _look(self) -> None:
        self.journal.ask(lambda store: store.fleet(), self._on_fleet, self._doubt)
        self.journal.flush()
        self.scene.timeline.timer(self.scene.pace.beat_s, self, self._look)

    def _doubt(self) -> None:
        """For a while a store that has failed is not believed when it names fewer than before."""
        self._doubted_until = self.scene.now + self.scene.pace.doubt_s

    def _on_fleet(self, seen: object) -> None:
        assert isinstance(seen, list)
        named: list[Seen] = seen
        if not named and self._named:
            self._doubt()
        if self.scene.now < self._doubted_until:
            names = {one.instance.instance_id for one in named}
            named = [*named, *(one for one in self._believed if one.instance.instance_id not in names)]
        self._named, self._believed = bool(seen), named
        self._fleet = fold(named, self._burdens)

    def _reap(self) -> None:
        if "reaper" not in self.scene.off:
            self.journal.ask(lambda store: store.renew(self.owner), self._on_leases, self._lose_sight)
        self.scene.timeline.timer(self.scene.pace.reap_s, self, self._reap)

    def _lose_sight(self) -> None:
        self._owners.lose_sight(self.scene.now)

    def _on_leases(self, answer: object) -> None:
        assert isinstance(answer, tuple)
        left_s, remembered = answer
        self._owners.see(left_s, self.scene.now)
        if self._leased and not remembered:
            # A store that has forgotten our lease has forgotten our tickets as well.
            self._owners.lose_sight(self.scene.now)
            for exchange in self.live.values():
                exchange.reopen()
        self._leased = True
        gone = self._owners.gone(self.scene.now)
        self.journal.ask(lambda store: store.claim(gone), partial(self._on_claims, gone), self._lose_sight)

    def _on_claims(self, gone: frozenset[str], claims: object) -> None:
        assert isinstance(claims, tuple)
        tickets, owners = claims
        self._owners.find(owners, self.scene.now)
        members = self._fleet.members
        instances = {member.instance.instance_id: member.instance for member in members}
        for ticket in tickets:
            Reaping(self, ticket, reason_of(ticket, gone), instances)


class Reaping:
    """One claimed ticket: its engines are told, then it is closed; what could not be told is claimed again."""

    def __init__(
        self, replica: Replica, ticket: OpenTicket, reason: str, instances: Mapping[InstanceId, Instance]
    ) -> None:
        self._replica = replica
        self._ticket = ticket
        self._reason = reason
        urls = set(whom_to_tell(ticket, instances))
        wanted = [instance for instance in instances.values() if instance.url in urls]
        self._waiting = len(wanted)
        replica.scene.counts["reaped"] += 1
        replica.tell(f"reaps {ticket.transfer_id} ({reason})")
        call = CancelCall(ticket.transfer_id, reason)
        network = replica.scene.network
        for instance in wanted:
            network.call(replica, network.host(instance.instance_id), call, self)
        if not wanted:
            self._close(told=True)

    def on_message(self, connection: Connection, message: object) -> None:
        """An engine has been told."""
        connection.finish()
        self._waiting -= 1
        if self._waiting == 0:
            self._close(told=True)

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """An engine cannot be told now."""
        self._close(told=False)

    def _close(self, *, told: bool) -> None:
        entry = closing(self._ticket, self._reason, told=told)
        if entry is not None:
            self._replica.journal.post(entry)


class _Nobody:
    def on_message(self, connection: Connection, message: object) -> None:
        connection.finish()

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """Whatever became of it: leases end what it was to end."""
