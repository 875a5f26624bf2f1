"""Decode's half of the driver: carries out what the SeatDesk orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine_shim.core.decode_effects import (
    DecodeEffect,
    Fail,
    FreeSeats,
    KVReady,
    Read,
    SendCancelled,
    SendMoved,
    SendQueued,
    SendRegistration,
)
from engine_shim.core.fates import Address
from engine_shim.core.seats import SeatDesk
from engine_shim.core.transfer_plan import plan_registered
from engine_shim.driver.copies import Copies
from engine_shim.driver.mail import Mail
from engine_shim.driver.peers import Peers
from engine_shim.engine.port import Seated
from router.contract.errors import StaleAttempt, TandemError
from router.contract.ids import EngineId, TransferId
from router.contract.notices import Acknowledged, Cancelled, Granted, Moved, Queued, Registered, Stopped
from router.contract.tags import Tag
from router.contract.wire import DecodeHandoff


@dataclass(frozen=True, slots=True)
class DecodeShell:
    """What the SeatDesk's effects need of the world."""

    peers: Peers
    copies: Copies
    mail: Mail
    kv_ready: Callable[[TransferId], None]
    unpin: Callable[[TransferId], None]
    fail: Callable[[TransferId, TandemError], None]
    """End the sequence and its stream with this error."""
    clock: Callable[[], float]


class DecodeSide:
    """Steps the SeatDesk and runs its effects to the end."""

    def __init__(self, desk: SeatDesk, shell: DecodeShell) -> None:
        self.desk = desk
        self._shell = shell

    async def open(self, handoff: DecodeHandoff) -> None:
        """Prefill's shim is known and this transfer is awaited.

        Raises HandshakeFailed, LayoutMismatch, PeerGone, StaleAttempt.
        """
        address = Address(handoff.side_channel_host, handoff.side_channel_port)
        peer = await self._shell.peers.ensure(handoff.prefill_engine_id, address)
        prefill = (peer.engine_id, peer.epoch)
        if not self.desk.open(handoff.transfer_id, handoff.mode, prefill, self._shell.clock(), handoff.waits):
            raise StaleAttempt(f"transfer_id {handoff.transfer_id} is in use; each attempt needs a fresh one.")

    def on_seated(self, transfer_id: TransferId, seated: Seated) -> None:
        """The engine reserved seats."""
        wanted = (seated.first_token, seated.num_tokens)
        self._run(self.desk.on_seated(transfer_id, seated.seats, wanted, self._shell.clock()))

    def on_left(self, transfer_id: TransferId) -> None:
        """The sequence is over; its seats may not be free yet."""
        self._run(self.desk.on_left(transfer_id, self._shell.clock()))

    def on_tag(self, tag: Tag) -> None:
        """A WRITE has landed."""
        self._run(self.desk.on_tag(tag, self._shell.clock()))

    def on_notice(self, notice: Acknowledged | Granted | Stopped) -> None:
        """Prefill has something to say."""
        match notice:
            case Acknowledged():
                self._run(self.desk.on_acknowledged(notice))
            case Granted():
                self._run(self.desk.on_granted(notice))
            case Stopped():
                self._run(self.desk.on_stopped(notice, self._shell.clock()))

    def on_peer_dead(self, engine_id: EngineId) -> None:
        """A prefill engine's process is dead."""
        self._run(self.desk.on_peer_dead(engine_id, self._shell.clock()))

    def on_access_ended(self, engine_id: EngineId) -> None:
        """Nothing of that prefill engine can land here any more."""
        self._run(self.desk.on_access_ended(engine_id))

    def on_tick(self) -> None:
        """Time has passed."""
        self._run(self.desk.on_tick(self._shell.clock()))

    def _run(self, effects: Iterable[DecodeEffect]) -> None:
        shell = self._shell
        ours = shell.peers.card.engine_id
        for effect in effects:
            match effect:
                case SendRegistration(registration):
                    shell.mail.tell(registration.prefill_engine_id, Registered(registration))
                case SendQueued(transfer_id, prefill):
                    shell.mail.tell(prefill, Queued(transfer_id, prefill, ours))
                case SendCancelled(transfer_id, prefill):
                    shell.mail.tell(prefill, Cancelled(transfer_id, prefill, ours))
                case SendMoved(transfer_id, prefill, error):
                    shell.mail.tell(prefill, Moved(transfer_id, prefill, ours, error))
                case Read():
                    self._read(effect)
                case KVReady(transfer_id):
                    shell.kv_ready(transfer_id)
                case FreeSeats(transfer_id):
                    shell.unpin(transfer_id)
                case Fail(transfer_id, cause):
                    shell.fail(transfer_id, cause)

    def _read(self, order: Read) -> None:
        registration, done = order.registration, order.done
        transfer_id = registration.transfer_id
        try:
            peer = self._shell.peers.find(registration.prefill_engine_id)
            plan = plan_registered(registration, done, peer.layout, self._shell.peers.card.layout)
        except TandemError as error:
            self._run(self.desk.on_read_ended(transfer_id, error))
            return
        self._shell.copies.read(peer, plan, lambda error: self._run(self.desk.on_read_ended(transfer_id, error)))
