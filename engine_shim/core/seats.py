"""Decode's side of every Rendezvous: when seats become KV, and when they may be used again.

    state    means                                                     leaves when
    QUEUED   the leg is here, the engine has not reserved seats yet    Seated, or given up
    TELLING  everything is cached here and nothing is wanted           prefill has acknowledged that
    WAITING  seats are reserved and registered                         the Tags land, a READ is granted, or given up
    READING  pull mode: our READ is posted                             the READ has ended
    LEAVING  given up; the seats are in Quarantine                     nobody can write them any more
    SETTLING nobody writes them any more, but what lies in buffers     they have been polled for
             of the network may still land                             `settle_for_s`
    CLOSED   nothing is held

Quarantine never ends by a clock alone. It ends when the Tags have landed (prefill has written all it ever will), when
prefill says Stopped, when our own READ has ended, or when prefill's process is dead and its access to our memory is
gone. What is said to prefill is said again until it has answered, at first after `resend_after_s`, then every
`renew_every_s`.
"""

from __future__ import annotations

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
from engine_shim.core.polled import PolledClock
from engine_shim.core.receive import Landing, ReceiveCounter
from engine_shim.core.seat_ticket import SeatState, SeatTicket
from router.contract.errors import KVWaitTimeout, PeerGone, RegistrationTimeout, TandemError, TransferFailed
from router.contract.ids import EngineId, Epoch, TransferId, digest_of
from router.contract.instance import Mode
from router.contract.kv import BlockTable
from router.contract.notices import LANDED, Acknowledged, Granted, Stopped
from router.contract.rendezvous import Registration
from router.contract.tags import Tag
from router.contract.wire import NO_WAITS, Waits


@dataclass(frozen=True, slots=True)
class DecodeClocks:
    """How long decode waits, seconds; for seats and KV less where a leg asks for less."""

    kv_wait_for_s: float = 120.0
    registration_for_s: float = 120.0
    resend_after_s: float = 1.0
    renew_every_s: float = 2.0
    settle_for_s: float = 1.0
    tag_wait_for_s: float = 2.0
    """From prefill's word that it has written everything to the end of our hope for the Tags."""


class SeatDesk:
    """All Rendezvous of one decode engine."""

    def __init__(self, engine_id: EngineId, clocks: DecodeClocks) -> None:
        self._engine_id = engine_id
        self._clocks = clocks
        self._tickets: dict[TransferId, SeatTicket] = {}
        self._by_digest: dict[bytes, SeatTicket] = {}
        self._polled = PolledClock()
        self.landings = dict.fromkeys(Landing, 0)
        self.late = 0
        """Notices for a transfer that holds and wants nothing here any more."""

    @property
    def num_open(self) -> int:
        """Tickets that still hold or want something."""
        return len(self._tickets)

    def state_of(self, transfer_id: TransferId) -> SeatState:
        """Where this leg's seats stand; CLOSED when nothing is known of it."""
        ticket = self._tickets.get(transfer_id)
        return SeatState.CLOSED if ticket is None else ticket.state

    def num_quarantined(self, prefill_engine_id: EngineId) -> int:
        """Seats that only this prefill engine keeps from being used."""
        tickets = (ticket for ticket in self._tickets.values() if ticket.prefill_engine_id == prefill_engine_id)
        return sum(len(t.registration.seats) for t in tickets if t.state.given_up and t.registration is not None)

    def open(
        self, transfer_id: TransferId, mode: Mode, prefill: tuple[EngineId, Epoch], now: float, asked: Waits = NO_WAITS
    ) -> bool:
        """Begin to wait for seats, no longer than `asked`; False when this TransferId is in use already."""
        if transfer_id in self._tickets:
            return False
        engine_id, epoch = prefill
        counter, clocks = ReceiveCounter(digest_of(transfer_id), epoch), self._clocks
        waits = Waits(min(clocks.registration_for_s, asked.registration_s), min(clocks.kv_wait_for_s, asked.kv_s))
        ticket = SeatTicket(transfer_id, mode, engine_id, counter, waits)
        ticket.deadline_at, ticket.say_at = now + waits.registration_s, now + clocks.resend_after_s
        self._tickets[transfer_id] = self._by_digest[counter.digest] = ticket
        return True

    def on_seated(
        self, transfer_id: TransferId, seats: BlockTable, wanted: tuple[int, int], now: float
    ) -> list[DecodeEffect]:
        """The engine reserved seats and wants tokens `wanted[0] <= t < wanted[1]`."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None:
            return [FreeSeats(transfer_id)]
        if ticket.registration is not None:
            return []
        first_token, num_tokens = wanted
        registration = Registration(
            transfer_id, ticket.mode, self._engine_id, ticket.prefill_engine_id, seats, first_token, num_tokens
        )
        if ticket.state is not SeatState.QUEUED:
            # Given up before prefill heard of these seats, so nobody can write them.
            self._close(ticket)
            return [FreeSeats(transfer_id)]
        ticket.registration = registration
        ticket.say_at = now + self._clocks.resend_after_s
        ticket.deadline_at = now + ticket.waits.kv_s
        ticket.state = SeatState.TELLING if first_token == num_tokens else SeatState.WAITING
        return [SendRegistration(registration)]

    def on_acknowledged(self, notice: Acknowledged) -> list[DecodeEffect]:
        """Prefill knows the seats."""
        ticket = self._told(notice.transfer_id)
        if ticket is not None and ticket.state is SeatState.TELLING:
            self._close(ticket)
        return []

    def on_tag(self, tag: Tag, now: float) -> list[DecodeEffect]:
        """A WRITE of prefill has landed."""
        ticket = self._by_digest.get(tag.digest)
        if ticket is None or ticket.registration is None:
            self.landings[Landing.STALE] += 1
            return []
        landing = ticket.counter.land(tag)
        self.landings[landing] += 1
        if landing is Landing.FAULT and ticket.state is SeatState.WAITING:
            return self._give_up(ticket, TransferFailed("The WRITEs of prefill contradict each other; retry."), now)
        if landing is not Landing.READY:
            return []
        self._close(ticket)
        if ticket.state is SeatState.WAITING:
            return [KVReady(ticket.transfer_id)]
        return [FreeSeats(ticket.transfer_id)]

    def on_granted(self, notice: Granted) -> list[DecodeEffect]:
        """Pull mode: prefill's blocks are ours to READ until we say Moved."""
        transfer_id = notice.done.transfer_id
        ticket = self._told(transfer_id)
        if ticket is not None and ticket.reading:
            # A repeated grant: Moved must not go out before the READ that it would disown has ended.
            return []
        if ticket is None or ticket.state.given_up:
            return [SendMoved(transfer_id, notice.prefill_engine_id, "cancelled")]
        if ticket.state is not SeatState.WAITING or ticket.registration is None or ticket.mode is not Mode.PULL:
            return []
        ticket.state, ticket.reading = SeatState.READING, True
        return [Read(ticket.registration, notice.done)]

    def on_read_ended(self, transfer_id: TransferId, error: TandemError | None) -> list[DecodeEffect]:
        """Our READ is over. One that failed may still have bytes under way, which settle."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None or not ticket.reading:
            return []
        ticket.reading = False
        effects: list[DecodeEffect] = [
            SendMoved(transfer_id, ticket.prefill_engine_id, "" if error is None else error.code)
        ]
        if error is not None:
            if not ticket.state.given_up:
                effects.append(Fail(transfer_id, error))
            return effects + self._let_go(ticket, begun=True)
        self._close(ticket)
        effects.append(FreeSeats(transfer_id) if ticket.state.given_up else KVReady(transfer_id))
        return effects

    def on_stopped(self, notice: Stopped, now: float) -> list[DecodeEffect]:
        """Prefill will not write (any more)."""
        ticket = self._told(notice.transfer_id)
        if ticket is None or ticket.reading or ticket.state is SeatState.SETTLING:
            return []
        if ticket.state is SeatState.TELLING:
            self._close(ticket)
            return []
        if notice.reason == LANDED and ticket.state is SeatState.WAITING:
            if not ticket.landed:
                ticket.landed = True
                ticket.deadline_at = min(ticket.deadline_at, now + self._clocks.tag_wait_for_s)
            return []
        effects: list[DecodeEffect] = []
        if not ticket.state.given_up:
            error = TransferFailed(f"Prefill gave the KV transfer up ({notice.reason or 'no reason given'}); retry.")
            effects.append(Fail(ticket.transfer_id, error))
        return effects + self._let_go(ticket, begun=notice.begun)

    def on_left(self, transfer_id: TransferId, now: float) -> list[DecodeEffect]:
        """The client left, the deadline passed, or the engine dropped the sequence; the sequence has ended already."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None or ticket.state.given_up or ticket.state is SeatState.TELLING:
            return []
        return self._give_up(ticket, None, now)

    def on_peer_dead(self, prefill_engine_id: EngineId, now: float) -> list[DecodeEffect]:
        """That prefill engine's process is dead: nobody need wait for it. Seats stay in Quarantine."""
        effects: list[DecodeEffect] = []
        for ticket in self._of(prefill_engine_id):
            if ticket.state is SeatState.TELLING:
                self._close(ticket)
            elif not ticket.state.given_up and not ticket.reading:
                effects.append(Fail(ticket.transfer_id, PeerGone("The prefill instance went away; retry.")))
                ticket.state = SeatState.LEAVING
        return effects

    def on_access_ended(self, prefill_engine_id: EngineId) -> list[DecodeEffect]:
        """That prefill engine's process is dead and can no longer reach our memory."""
        effects: list[DecodeEffect] = []
        for ticket in self._of(prefill_engine_id):
            if not ticket.reading:
                self._close(ticket)
                effects.append(FreeSeats(ticket.transfer_id))
        return effects

    def on_tick(self, now: float) -> list[DecodeEffect]:
        """Give up what waited too long; say again what has not been answered."""
        effects: list[DecodeEffect] = []
        self._polled.tick(now)
        for ticket in list(self._tickets.values()):
            if ticket.state is SeatState.SETTLING:
                ticket.settling_since, settled_s = self._polled.since(ticket.settling_since)
                if settled_s >= self._clocks.settle_for_s:
                    self._close(ticket)
                    effects.append(FreeSeats(ticket.transfer_id))
            elif ticket.state in (SeatState.QUEUED, SeatState.WAITING) and now > ticket.deadline_at:
                effects += self._time_out(ticket, now)
            elif now >= ticket.say_at:
                effects += self._say_again(ticket, now)
        return effects

    def _told(self, transfer_id: TransferId) -> SeatTicket | None:
        """The ticket that prefill speaks of; a missing one is counted, since decode's leg opens it before it speaks."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None:
            self.late += 1
        return ticket

    def _of(self, prefill_engine_id: EngineId) -> list[SeatTicket]:
        return [ticket for ticket in self._tickets.values() if ticket.prefill_engine_id == prefill_engine_id]

    def _time_out(self, ticket: SeatTicket, now: float) -> list[DecodeEffect]:
        if ticket.landed:
            error: TandemError = TransferFailed("Prefill has written the KV cache, but its Tags were lost; retry.")
            return [Fail(ticket.transfer_id, error), *self._let_go(ticket, begun=True)]
        if ticket.state is SeatState.QUEUED:
            waited = f"{ticket.waits.registration_s:g} s"
            error = RegistrationTimeout(f"Decode had no room for the KV cache within {waited}; retry.")
        else:
            waited = f"{ticket.waits.kv_s:g} s"
            error = KVWaitTimeout(f"The KV cache did not arrive from prefill within {waited}; retry.")
        return self._give_up(ticket, error, now)

    def _say_again(self, ticket: SeatTicket, now: float) -> list[DecodeEffect]:
        ticket.say_at = now + self._clocks.renew_every_s
        match ticket.state:
            case SeatState.QUEUED:
                return [SendQueued(ticket.transfer_id, ticket.prefill_engine_id)]
            case SeatState.LEAVING if not ticket.reading:
                return [SendCancelled(ticket.transfer_id, ticket.prefill_engine_id)]
            case SeatState.WAITING | SeatState.TELLING if ticket.registration is not None:
                return [SendRegistration(ticket.registration)]
            case _:
                return []

    def _give_up(self, ticket: SeatTicket, error: TandemError | None, now: float) -> list[DecodeEffect]:
        effects: list[DecodeEffect] = [] if error is None else [Fail(ticket.transfer_id, error)]
        if ticket.landed and not ticket.reading:
            return effects + self._let_go(ticket, begun=True)
        ticket.state, ticket.say_at = SeatState.LEAVING, now + self._clocks.resend_after_s
        if not ticket.reading:
            effects.append(SendCancelled(ticket.transfer_id, ticket.prefill_engine_id))
        return effects

    def _let_go(self, ticket: SeatTicket, *, begun: bool) -> list[DecodeEffect]:
        """Prefill writes no more: the seats are free at once, or when what it had begun has settled."""
        if begun and ticket.registration is not None:
            ticket.state = SeatState.SETTLING
            return []
        self._close(ticket)
        return [FreeSeats(ticket.transfer_id)]

    def _close(self, ticket: SeatTicket) -> None:
        del self._tickets[ticket.transfer_id]
        del self._by_digest[ticket.counter.digest]
