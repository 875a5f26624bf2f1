"""Decode's side of every Rendezvous: when seats become KV, and when they may be used again.

    state    means                                                     leaves when
    QUEUED   the leg is here, the engine has not reserved seats yet    Seated, or given up
    WAITING  seats are reserved and registered                         the Tags land, a READ is granted, or given up
    READING  pull mode: our READ is posted                             the READ has ended
    LEAVING  given up; the seats are in Quarantine                     nobody can write them any more
    CLOSED   nothing is held

Quarantine never ends by a clock. It ends when the Tags have landed (prefill has written all it ever will), when prefill
says Stopped, when our own READ has ended, or when prefill's process is gone and with it its access to our memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine_shim.core.receive import Landing, ReceiveCounter
from router.contract.errors import KVWaitTimeout, PeerGone, TandemError, TransferFailed
from router.contract.ids import EngineId, Epoch, TransferId, digest_of
from router.contract.instance import Mode
from router.contract.kv import BlockTable
from router.contract.notices import Granted, Stopped
from router.contract.rendezvous import PrefillDone, Registration
from router.contract.tags import Tag


class SeatState(StrEnum):
    """Where a decode leg's seats stand."""

    QUEUED = "QUEUED"
    WAITING = "WAITING"
    READING = "READING"
    LEAVING = "LEAVING"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True)
class SendRegistration:
    """Tell prefill about the seats (again)."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class SendCancelled:
    """Tell prefill that we gave up (again)."""

    transfer_id: TransferId
    prefill_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class SendMoved:
    """Pull mode: tell prefill that our READ has ended."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    error: str


@dataclass(frozen=True, slots=True)
class Read:
    """Pull mode: READ now."""

    registration: Registration
    done: PrefillDone


@dataclass(frozen=True, slots=True)
class KVReady:
    """Every promised byte is in the seats; the sequence may run. The pin ends with it."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class FreeSeats:
    """Unpin the seats: nobody can write them any more."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class Fail:
    """End the sequence with this error; the seats stay pinned until FreeSeats."""

    transfer_id: TransferId
    error: TandemError


DecodeEffect = SendRegistration | SendCancelled | SendMoved | Read | KVReady | FreeSeats | Fail


@dataclass(frozen=True, slots=True)
class DecodeClocks:
    """How long decode waits, seconds."""

    kv_wait_for_s: float = 120.0
    resend_every_s: float = 1.0


@dataclass(slots=True)
class SeatTicket:
    """One decode leg that receives KV."""

    transfer_id: TransferId
    mode: Mode
    decode_engine_id: EngineId
    prefill_engine_id: EngineId
    counter: ReceiveCounter
    opened_at: float
    state: SeatState = SeatState.QUEUED
    registration: Registration | None = None
    deadline_at: float = 0.0
    sent_at: float = 0.0
    reading: bool = False
    """Our own READ is posted; until it ends, nothing else may end the pin."""


class SeatDesk:
    """All Rendezvous of one decode engine."""

    def __init__(self, engine_id: EngineId, clocks: DecodeClocks) -> None:
        self._engine_id = engine_id
        self._clocks = clocks
        self._tickets: dict[TransferId, SeatTicket] = {}
        self._by_digest: dict[bytes, SeatTicket] = {}
        self.landings = dict.fromkeys(Landing, 0)

    @property
    def num_open(self) -> int:
        """Tickets that still hold or want something."""
        return len(self._tickets)

    def state_of(self, transfer_id: TransferId) -> SeatState:
        """Where this leg's seats stand; CLOSED when nothing is known of it."""
        ticket = self._tickets.get(transfer_id)
        return SeatState.CLOSED if ticket is None else ticket.state

    def open(self, transfer_id: TransferId, mode: Mode, prefill: tuple[EngineId, Epoch], now: float) -> bool:
        """Begin to wait for seats; False when this TransferId is in use already."""
        if transfer_id in self._tickets:
            return False
        engine_id, epoch = prefill
        counter = ReceiveCounter(digest_of(transfer_id), epoch)
        ticket = SeatTicket(transfer_id, mode, self._engine_id, engine_id, counter, now)
        self._tickets[transfer_id] = self._by_digest[counter.digest] = ticket
        return True

    def on_seated(
        self, transfer_id: TransferId, seats: BlockTable, wanted: tuple[int, int], now: float
    ) -> list[DecodeEffect]:
        """The engine reserved seats and wants tokens `wanted[0] <= t < wanted[1]`."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None:
            return [FreeSeats(transfer_id)]
        first_token, num_tokens = wanted
        ticket.registration = Registration(
            transfer_id, ticket.mode, self._engine_id, ticket.prefill_engine_id, seats, first_token, num_tokens
        )
        if ticket.state is SeatState.LEAVING:
            return []
        ticket.sent_at = now
        ticket.deadline_at = now + self._clocks.kv_wait_for_s
        ticket.state = SeatState.WAITING
        if first_token == num_tokens:
            # Everything is cached here: prefill learns that nothing is wanted, and nobody waits for an answer.
            self._close(ticket)
        return [SendRegistration(ticket.registration)]

    def on_tag(self, tag: Tag) -> list[DecodeEffect]:
        """A WRITE of prefill has landed."""
        ticket = self._by_digest.get(tag.digest)
        landing = Landing.STALE if ticket is None else ticket.counter.land(tag)
        self.landings[landing] += 1
        if ticket is None:
            return []
        if landing is Landing.FAULT and ticket.state is SeatState.WAITING:
            return self._give_up(ticket, TransferFailed("The WRITEs of prefill contradict each other; retry."), 0.0)
        if landing is not Landing.READY:
            return []
        self._close(ticket)
        if ticket.state is SeatState.WAITING:
            return [KVReady(ticket.transfer_id)]
        return [FreeSeats(ticket.transfer_id)]

    def on_granted(self, notice: Granted, now: float) -> list[DecodeEffect]:
        """Pull mode: prefill's blocks are ours to READ until we say Moved."""
        transfer_id = notice.done.transfer_id
        ticket = self._tickets.get(transfer_id)
        if ticket is not None and ticket.reading:
            # A repeated grant: Moved must not go out before the READ that it would disown has ended.
            return []
        if ticket is None or ticket.state is SeatState.LEAVING:
            return [SendMoved(transfer_id, notice.prefill_engine_id, "cancelled")]
        if ticket.state is not SeatState.WAITING or ticket.registration is None or ticket.mode is not Mode.PULL:
            return []
        ticket.state, ticket.reading, ticket.sent_at = SeatState.READING, True, now
        return [Read(ticket.registration, notice.done)]

    def on_read_ended(self, transfer_id: TransferId, error: TandemError | None) -> list[DecodeEffect]:
        """Our READ is over, well or badly; it touches the seats no more."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None:
            return []
        self._close(ticket)
        moved = SendMoved(transfer_id, ticket.prefill_engine_id, "" if error is None else error.code)
        if ticket.state is SeatState.LEAVING:
            return [moved, FreeSeats(transfer_id)]
        if error is not None:
            return [moved, Fail(transfer_id, error), FreeSeats(transfer_id)]
        return [moved, KVReady(transfer_id)]

    def on_stopped(self, notice: Stopped) -> list[DecodeEffect]:
        """Prefill will not write (any more)."""
        ticket = self._tickets.get(notice.transfer_id)
        if ticket is None or ticket.prefill_engine_id != notice.prefill_engine_id:
            return []
        if ticket.reading:
            return []
        self._close(ticket)
        if ticket.state is SeatState.LEAVING:
            return [FreeSeats(ticket.transfer_id)]
        error = TransferFailed(f"Prefill gave the KV transfer up ({notice.reason or 'no reason given'}); retry.")
        return [Fail(ticket.transfer_id, error), FreeSeats(ticket.transfer_id)]

    def on_left(self, transfer_id: TransferId, now: float) -> list[DecodeEffect]:
        """The client left, the deadline passed, or the engine dropped the sequence; the sequence has ended already."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None or ticket.state is SeatState.LEAVING:
            return []
        return self._give_up(ticket, None, now)

    def on_peer_gone(self, prefill_engine_id: EngineId) -> list[DecodeEffect]:
        """That prefill engine's process is gone, and with it all access to our memory."""
        effects: list[DecodeEffect] = []
        for ticket in list(self._tickets.values()):
            if ticket.prefill_engine_id != prefill_engine_id or ticket.reading:
                continue
            self._close(ticket)
            if ticket.state is not SeatState.LEAVING:
                effects.append(Fail(ticket.transfer_id, PeerGone("The prefill instance went away; retry.")))
            effects.append(FreeSeats(ticket.transfer_id))
        return effects

    def on_tick(self, now: float) -> list[DecodeEffect]:
        """Give up what waited too long; say again what has not been answered."""
        effects: list[DecodeEffect] = []
        for ticket in list(self._tickets.values()):
            if ticket.state is SeatState.WAITING and now > ticket.deadline_at:
                waited = f"{self._clocks.kv_wait_for_s:g} s"
                error = KVWaitTimeout(f"The KV cache did not arrive from prefill within {waited}; retry.")
                effects += self._give_up(ticket, error, now)
            elif now - ticket.sent_at > self._clocks.resend_every_s:
                effects += self._say_again(ticket, now)
        return effects

    def _say_again(self, ticket: SeatTicket, now: float) -> list[DecodeEffect]:
        ticket.sent_at = now
        if ticket.state is SeatState.LEAVING and not ticket.reading:
            return [SendCancelled(ticket.transfer_id, ticket.prefill_engine_id)]
        if ticket.state is SeatState.WAITING and ticket.registration is not None:
            return [SendRegistration(ticket.registration)]
        return []

    def _give_up(self, ticket: SeatTicket, error: TandemError | None, now: float) -> list[DecodeEffect]:
        ticket.state, ticket.sent_at = SeatState.LEAVING, now
        effects: list[DecodeEffect] = [] if error is None else [Fail(ticket.transfer_id, error)]
        if not ticket.reading:
            effects.append(SendCancelled(ticket.transfer_id, ticket.prefill_engine_id))
        return effects

    def _close(self, ticket: SeatTicket) -> None:
        del self._tickets[ticket.transfer_id]
        del self._by_digest[ticket.counter.digest]
