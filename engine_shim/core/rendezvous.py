"""Prefill's side of every Rendezvous: walks JOIN and is its authority.

A PrefillTicket exists from the first arrival until `tombstone_for_s` after its close, so that what comes late finds a
closed ticket and is answered, not started again. Time only ever abandons a ticket that nobody writes for:

    SEATED  longer than `seat_wait_for_s`   and the prefill leg never came: abandoned, decode is told; a leg that is
                                            here may queue and compute as long as its own deadline allows
    FILLED  longer than `lease_for_s`       decode never registered: abandoned, the KV is unpinned
    MATCHED, DRAINING                       no clock: the mover must end, or its process must be gone; in pull mode
                                            the grant is repeated every `resend_every_s` until decode says Moved

Decode's Queued renews the lease of FILLED. Every Registration is answered: Acknowledged while the ticket is open,
Stopped once it is closed (`landed` when the WRITE was complete, so that a lost Tag is noticed).

Walked by the shim's driver; the effects are its orders. Nothing here knows NIXL, threads or the time of day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine_shim.core.prefill_effects import Acknowledge, FreeKV, FreeSeats, PrefillEffect, StopWriter, Walked, Write
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.notices import LANDED, Cancelled, Moved, Queued
from router.contract.rendezvous import Arrival, JoinEffect, JoinState, PrefillDone, Registration, join


@dataclass(slots=True)
class PrefillTicket:
    """One Rendezvous as prefill sees it."""

    transfer_id: TransferId
    state: JoinState
    since: float
    """When `state` was entered, monotonic seconds."""
    registration: Registration | None = None
    done: PrefillDone | None = None
    has_leg: bool = False
    """The prefill leg is here; it ends as Prefilled or Abandoned."""
    renewed_at: float = 0.0
    """When decode last said that it is queued."""
    granted_at: float = 0.0
    """Pull mode: when decode was last told to READ."""
    begun: bool = False
    """Push mode: a WRITE has been ordered."""
    reason: str = ""
    """Why it became VOID or DRAINING: a code of the error tree, or `cancelled`."""


@dataclass(frozen=True, slots=True)
class PrefillClocks:
    """How long prefill waits, seconds."""

    lease_for_s: float = 30.0
    seat_wait_for_s: float = 60.0
    tombstone_for_s: float = 120.0
    resend_every_s: float = 1.0


class PrefillDesk:
    """All Rendezvous of one prefill engine."""

    def __init__(self, clocks: PrefillClocks) -> None:
        self._clocks = clocks
        self._tickets: dict[TransferId, PrefillTicket] = {}
        self.faults = 0
        """Arrivals that contradicted an earlier one, or for which JOIN has no row."""
        self.late = 0
        """Notices for a Rendezvous that was over."""

    @property
    def num_open(self) -> int:
        """Tickets that are neither LANDED nor VOID."""
        return sum(not ticket.state.closed for ticket in self._tickets.values())

    def state_of(self, transfer_id: TransferId) -> JoinState:
        """Where this Rendezvous stands; EMPTY when nothing is known of it."""
        ticket = self._tickets.get(transfer_id)
        return JoinState.EMPTY if ticket is None else ticket.state

    def on_leg(self, transfer_id: TransferId, now: float) -> bool:
        """The prefill leg has come. False: this Rendezvous is over already, and the leg must not start."""
        ticket = self._ticket(transfer_id, now)
        ticket.has_leg = True
        return not ticket.state.closed

    def on_registered(self, registration: Registration, now: float) -> list[PrefillEffect]:
        """Decode's seats arrived, for the first time or again; it is told how its transfer stands."""
        self._count_late(registration.transfer_id)
        ticket = self._ticket(registration.transfer_id, now)
        if ticket.registration not in (None, registration):
            self.faults += 1
            return []
        ticket.registration = registration
        effects = self._walk(ticket, Arrival.REGISTERED, now)
        if ticket.state is JoinState.LANDED:
            effects.append(FreeSeats(ticket.transfer_id, registration.decode_engine_id, LANDED, ticket.begun))
        elif not ticket.state.closed:
            effects.append(Acknowledge(ticket.transfer_id, registration.decode_engine_id))
        return effects

    def on_queued(self, notice: Queued, now: float) -> list[PrefillEffect]:
        """Decode waits for seats of its own; it is told if that is in vain."""
        self._count_late(notice.transfer_id)
        ticket = self._tickets.get(notice.transfer_id)
        if ticket is None:
            return []
        ticket.renewed_at = now
        if ticket.state is not JoinState.VOID:
            return []
        return [FreeSeats(ticket.transfer_id, notice.decode_engine_id, ticket.reason, ticket.begun)]

    def on_prefilled(self, done: PrefillDone, now: float) -> list[PrefillEffect]:
        """The engine computed and pinned the KV."""
        ticket = self._ticket(done.transfer_id, now)
        if ticket.done not in (None, done):
            self.faults += 1
            return []
        ticket.done = done
        return self._walk(ticket, Arrival.PREFILLED, now)

    def on_abandoned(self, transfer_id: TransferId, reason: str, now: float) -> list[PrefillEffect]:
        """The prefill leg ended badly, or the router took the attempt back."""
        ticket = self._ticket(transfer_id, now)
        ticket.reason = ticket.reason or reason
        return self._walk(ticket, Arrival.ABANDONED, now)

    def on_cancelled(self, notice: Cancelled, now: float) -> list[PrefillEffect]:
        """Decode gave up. It is answered as soon as nothing can land any more: now, or when the mover has ended."""
        self._count_late(notice.transfer_id)
        effects = self.on_abandoned(notice.transfer_id, "cancelled", now)
        ticket = self._tickets[notice.transfer_id]
        if ticket.state.closed and not any(isinstance(effect, FreeSeats) for effect in effects):
            effects.append(FreeSeats(notice.transfer_id, notice.decode_engine_id, "cancelled", ticket.begun))
        return effects

    def on_moved(self, notice: Moved, now: float) -> list[PrefillEffect]:
        """Pull mode: decode's READ has ended."""
        self._count_late(notice.transfer_id)
        if notice.error:
            return self.on_writer_failed(notice.transfer_id, notice.error, now)
        return self.on_writer_done(notice.transfer_id, now)

    def on_writer_done(self, transfer_id: TransferId, now: float) -> list[PrefillEffect]:
        """The mover has copied everything and will touch nothing more."""
        return self._on_writer(transfer_id, Arrival.WRITER_DONE, "", now)

    def on_writer_failed(self, transfer_id: TransferId, reason: str, now: float) -> list[PrefillEffect]:
        """The mover has given up and will touch nothing more."""
        return self._on_writer(transfer_id, Arrival.WRITER_FAILED, reason, now)

    def on_peer_dead(self, decode_engine_id: EngineId, now: float) -> list[PrefillEffect]:
        """That decode engine's process is dead: no READ of it runs, and nobody waits there for a WRITE.

        A WRITE towards it that is still posted ends by itself with an error and is not touched here.
        """
        effects: list[PrefillEffect] = []
        for ticket in list(self._tickets.values()):
            registration = ticket.registration
            if registration is None or registration.decode_engine_id != decode_engine_id or ticket.state.closed:
                continue
            if ticket.state is JoinState.SEATED:
                effects += self.on_abandoned(ticket.transfer_id, "peer_gone", now)
            elif registration.mode is Mode.PULL:
                effects += self.on_writer_failed(ticket.transfer_id, "peer_gone", now)
        return effects

    def on_tick(self, now: float) -> list[PrefillEffect]:
        """Abandon what waited too long for its other half; forget old tombstones."""
        effects: list[PrefillEffect] = []
        lease_for_s = self._clocks.lease_for_s
        for ticket in list(self._tickets.values()):
            waited_for_s = now - ticket.since
            if ticket.state.closed and waited_for_s > self._clocks.tombstone_for_s:
                del self._tickets[ticket.transfer_id]
            elif self._misses_leg(ticket) and waited_for_s > self._clocks.seat_wait_for_s:
                effects += self.on_abandoned(ticket.transfer_id, "prefill_leg_missing", now)
            elif ticket.state is JoinState.FILLED and now - max(ticket.since, ticket.renewed_at) > lease_for_s:
                effects += self.on_abandoned(ticket.transfer_id, "lease_ended", now)
            elif ticket.state in (JoinState.MATCHED, JoinState.DRAINING):
                effects += self._grant_again(ticket, now)
        return effects

    def _count_late(self, transfer_id: TransferId) -> None:
        """A notice about this Rendezvous has come. One that is unknown has yet to begin."""
        if self.state_of(transfer_id).closed:
            self.late += 1

    def _misses_leg(self, ticket: PrefillTicket) -> bool:
        return ticket.state is JoinState.SEATED and not ticket.has_leg

    def _grant_again(self, ticket: PrefillTicket, now: float) -> list[PrefillEffect]:
        registration, done = ticket.registration, ticket.done
        if registration is None or done is None or registration.mode is not Mode.PULL:
            return []
        if now - max(ticket.since, ticket.granted_at) < self._clocks.resend_every_s:
            return []
        ticket.granted_at = now
        return [Write(registration, done)]

    def _ticket(self, transfer_id: TransferId, now: float) -> PrefillTicket:
        ticket = self._tickets.get(transfer_id)
        if ticket is None:
            ticket = self._tickets[transfer_id] = PrefillTicket(transfer_id, JoinState.EMPTY, now)
        return ticket

    def _on_writer(self, transfer_id: TransferId, arrival: Arrival, reason: str, now: float) -> list[PrefillEffect]:
        ticket = self._tickets.get(transfer_id)
        if ticket is None:
            self.faults += 1
            return []
        ticket.reason = ticket.reason or reason
        return self._walk(ticket, arrival, now)

    def _walk(self, ticket: PrefillTicket, arrival: Arrival, now: float) -> list[PrefillEffect]:
        row = join(ticket.state, arrival)
        if row is None:
            self.faults += 1
            return []
        state, ordered = row
        effects: list[PrefillEffect] = []
        if state is not ticket.state:
            ticket.state, ticket.since = state, now
            effects.append(Walked(ticket.transfer_id, arrival, state, ticket.reason))
        effects.extend(_orders(ticket, ordered))
        return effects


def _orders(ticket: PrefillTicket, ordered: tuple[JoinEffect, ...]) -> Iterator[PrefillEffect]:
    registration, done = ticket.registration, ticket.done
    for effect in ordered:
        if effect is JoinEffect.FREE_KV:
            yield FreeKV(ticket.transfer_id)
        elif registration is None:
            continue
        elif effect is JoinEffect.FREE_SEATS:
            yield FreeSeats(ticket.transfer_id, registration.decode_engine_id, ticket.reason, ticket.begun)
        elif effect is JoinEffect.STOP_WRITER:
            yield StopWriter(registration)
        elif done is not None:
            ticket.begun = registration.mode is Mode.PUSH
            yield Write(registration, done)
