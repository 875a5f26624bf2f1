"""Prefill's half of the driver: carries out what the PrefillDesk orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine_shim.core.prefill_effects import (
    Acknowledge,
    FreeKV,
    FreeSeats,
    Grant,
    PrefillEffect,
    StopWriter,
    Walked,
    Write,
)
from engine_shim.core.rendezvous import PrefillDesk
from engine_shim.core.traffic import Pushes
from engine_shim.core.transfer_plan import plan_registered
from engine_shim.driver.copies import Copies
from engine_shim.driver.mail import Mail
from engine_shim.driver.peers import Peers
from router.contract.errors import TandemError
from router.contract.ids import EngineId, TransferId, digest_of
from router.contract.notices import Acknowledged, Cancelled, Granted, Moved, Queued, Registered, Stopped
from router.contract.rendezvous import PrefillDone
from router.contract.tags import Tag


@dataclass(frozen=True, slots=True)
class PrefillShell:
    """What the PrefillDesk's effects need of the world."""

    peers: Peers
    copies: Copies
    mail: Mail
    unpin: Callable[[TransferId], None]
    """Prefill's blocks of this transfer are free."""
    walked: Callable[[Walked], None]
    """For the ledger."""
    clock: Callable[[], float]


class PrefillSide:
    """Steps the PrefillDesk and runs its effects to the end."""

    def __init__(self, desk: PrefillDesk, shell: PrefillShell) -> None:
        self.desk = desk
        self._shell = shell
        self.pushes = Pushes()

    def on_prefilling(self, part: PrefillDone) -> None:
        """The engine holds the KV of the first tokens, and goes on."""
        self._run(self.desk.on_prefilling(part, self._now()))

    def on_layers(self, whole: PrefillDone, num_layers: int) -> None:
        """The engine holds so many layers of the KV, and goes on."""
        self._run(self.desk.on_layers(whole, num_layers, self._now()))

    def on_prefilled(self, done: PrefillDone) -> None:
        """The engine holds the KV."""
        self._run(self.desk.on_prefilled(done, self._now()))

    def on_leg_ended(self, transfer_id: TransferId, reason: str) -> None:
        """The leg is over before its time."""
        self._run(self.desk.on_leg_ended(transfer_id, reason, self._now()))

    def on_abandoned(self, transfer_id: TransferId, reason: str) -> None:
        """The leg ended badly or was taken back."""
        self._run(self.desk.on_abandoned(transfer_id, reason, self._now()))

    def on_notice(self, notice: Registered | Queued | Cancelled | Moved) -> None:
        """Decode has something to say."""
        match notice:
            case Registered(registration):
                self._run(self.desk.on_registered(registration, self._now()))
            case Queued():
                self._run(self.desk.on_queued(notice, self._now()))
            case Cancelled():
                self._run(self.desk.on_cancelled(notice, self._now()))
            case Moved():
                self._run(self.desk.on_moved(notice, self._now()))

    def on_peer_dead(self, engine_id: EngineId) -> None:
        """A decode engine's process is dead."""
        self._run(self.desk.on_peer_dead(engine_id, self._now()))

    def on_tick(self) -> None:
        """Time has passed."""
        self._run(self.desk.on_tick(self._now()))

    @property
    def _ours(self) -> EngineId:
        return self._shell.peers.card.engine_id

    def _now(self) -> float:
        return self._shell.clock()

    def _run(self, effects: Iterable[PrefillEffect]) -> None:
        for effect in effects:
            match effect:
                case Write():
                    self._write(effect)
                case Grant(registration, done):
                    decode = registration.decode_engine_id
                    self._shell.mail.tell(decode, Granted(done, self._ours, decode))
                case FreeKV(transfer_id):
                    self._shell.unpin(transfer_id)
                case FreeSeats(transfer_id, decode, reason, begun):
                    self._shell.mail.tell(decode, Stopped(transfer_id, self._ours, decode, reason, begun))
                case Acknowledge(transfer_id, decode):
                    self._shell.mail.tell(decode, Acknowledged(transfer_id, self._ours, decode))
                case StopWriter():
                    # A posted WRITE cannot be recalled and lasts milliseconds: its end is what is waited for.
                    continue
                case Walked():
                    self._shell.walked(effect)

    def _write(self, order: Write) -> None:
        chunk, transfer_id = order.chunk, order.registration.transfer_id
        wanted = chunk.of(order.registration)
        try:
            peer = self._shell.peers.find(wanted.decode_engine_id)
            plan = plan_registered(wanted, order.done, self._shell.peers.card.layout, peer.layout, chunk.layers)
        except TandemError as error:
            self._run(self.desk.on_written(transfer_id, error.code, self._now()))
            return
        self.pushes.add(chunk, plan.num_bytes)
        tag = Tag(digest_of(transfer_id), self._shell.peers.card.epoch, 0, 1, chunk.seq, chunk.total)
        label = self._shell.mail.label(tag)
        self._shell.copies.write(peer, plan, label, lambda error: self._written(transfer_id, error))

    def _written(self, transfer_id: TransferId, error: TandemError | None) -> None:
        self._run(self.desk.on_written(transfer_id, "" if error is None else error.code, self._now()))
