"""Prefill's side of every Rendezvous: walks JOIN and is its authority.

A PrefillTicket exists from the first arrival until `tombstone_for_s` after its close, so that what comes late finds a
closed ticket and is answered, not started again. Time only ever abandons a ticket that nobody writes for:

    SEATED  longer than `seat_wait_for_s`   and the prefill leg never came: abandoned, decode is told; a leg that is
                                            here may queue and compute as long as its own deadline allows
    FILLED  longer than `lease_for_s`       decode never registered: abandoned, the KV is unpinned; counted from the
                                            moment when prefill was done
    MATCHED, DRAINING                       no clock: the mover must end, or its process must be gone; in pull mode
                                            the grant is repeated every `resend_every_s` until decode says Moved

Prefilled may come early and again: it says that the KV begins to lie in these pinned blocks and how much of it is
there, or how many layers of all of it, and at last that prefill is done. A push starts with what is there (`push`) and
goes on with every Prefilled and every WRITE that has ended; a pull is granted when prefill is done. Until then a leg
that ends takes the Rendezvous with it, and an abandoned push ends as soon as none of its WRITEs is under way.

Decode's Queued renews the lease of FILLED. Every Registration is answered: Acknowledged while the ticket is open,
Stopped once it is closed (`landed` when the WRITE was complete, so that a lost Tag is noticed).

Walked by the shim's driver; the effects are its orders. Nothing here knows NIXL, threads or the time of day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine_shim.core.prefill_effects import (
    Acknowledge,
    FreeKV,
    FreeSeats,
    PrefillEffect,
    StopWriter,
    Walked,
)
from engine_shim.core.prefill_ticket import PrefillTicket
from engine_shim.core.push import Push, PushLimits
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.notices import LANDED, Cancelled, Moved, Queued
from router.contract.rendezvous import Arrival, JoinEffect, JoinState, PrefillDone, Registration, join


@dataclass(frozen=True, slots=True)
class PrefillClocks:
    """How long prefill waits, seconds."""

    lease_for_s: float = 30.0
    seat_wait_for_s: float = 60.0
    tombstone_for_s: float = 120.0
    resend_every_s: float = 1.0


class PrefillDesk:
    """All Rendezvous of one prefill engine."""

    def __init__(self, clocks: PrefillClocks, limits: PushLimits | None = None) -> None:
        self._clocks = clocks
        self._limits = limits or PushLimits()
        self._tickets: dict[TransferId, PrefillTicket] = {}
        self.faults = 0
        """Arrivals that contradicted an earlier one, or for which JOIN has no row."""
        self.late = 0
        """Notices for a Rendezvous that was over."""

    def is_complete(self, transfer_id: TransferId) -> bool:
        """True when prefill is done with this transfer."""
        ticket = self._tickets.get(transfer_id)
        return ticket is not None and ticket.complete

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
        effects = self._arrive(ticket, Arrival.REGISTERED, now)
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

    def on_prefilling(self, part: PrefillDone, now: float) -> list[PrefillEffect]:
        """The engine has pinned these blocks, and the KV of the first `part.num_tokens` is there; more follows."""
        return self._on_kv(part, now, complete=False)

    def on_layers(self, whole: PrefillDone, num_layers: int, now: float) -> list[PrefillEffect]:
        """The engine has pinned these blocks; of `whole`, all of the KV, the first `num_layers` layers are there."""
        ticket = self._ticket(whole.transfer_id, now)
        if not ticket.complete:
            ticket.layered, ticket.num_layers = whole, num_layers
        num_tokens = 0 if ticket.done is None else ticket.done.num_tokens
        return self._on_kv(replace(whole, num_tokens=num_tokens), now, complete=False)

    def on_prefilled(self, done: PrefillDone, now: float) -> list[PrefillEffect]:
        """The engine has computed and pinned all of the KV."""
        return self._on_kv(done, now, complete=True)

    def on_leg_ended(self, transfer_id: TransferId, reason: str, now: float) -> list[PrefillEffect]:
        """The prefill leg is over before its time: that of a prefill that is not done ends the Rendezvous."""
        return [] if self.is_complete(transfer_id) else self.on_abandoned(transfer_id, reason, now)

    def on_abandoned(self, transfer_id: TransferId, reason: str, now: float) -> list[PrefillEffect]:
        """The prefill leg ended badly, or the router took the attempt back."""
        ticket = self._ticket(transfer_id, now)
        ticket.reason = ticket.reason or reason
        return self._arrive(ticket, Arrival.ABANDONED, now)

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
        ticket = self._tickets.get(notice.transfer_id)
        if ticket is None or ticket.push is not None:
            # Of a push, only we know when its mover has ended.
            self.faults += 1
            return []
        return self._on_read(ticket, notice.error, now)

    def on_written(self, transfer_id: TransferId, error: str, now: float) -> list[PrefillEffect]:
        """Push mode: one WRITE has ended and will touch nothing more; `error` is empty when all of it has landed."""
        ticket = self._tickets.get(transfer_id)
        if ticket is None or ticket.push is None or not ticket.push.num_in_flight:
            self.faults += 1
            return []
        ticket.push.on_written(error)
        return self._go_on(ticket, now)

    def on_peer_dead(self, decode_engine_id: EngineId, now: float) -> list[PrefillEffect]:
        """That decode engine's process is dead: no READ of it runs, and nobody waits there for a WRITE.

        A WRITE towards it that is still posted ends by itself with an error and is not touched here; no more follow.
        """
        effects: list[PrefillEffect] = []
        for ticket in list(self._tickets.values()):
            registration = ticket.registration
            if registration is None or registration.decode_engine_id != decode_engine_id or ticket.state.closed:
                continue
            if ticket.state is JoinState.SEATED or not ticket.complete:
                effects += self.on_abandoned(ticket.transfer_id, "peer_gone", now)
            elif registration.mode is Mode.PULL:
                effects += self._on_read(ticket, "peer_gone", now)
        return effects

    def on_tick(self, now: float) -> list[PrefillEffect]:
        """Abandon what waited too long for its other half; forget old tombstones."""
        effects: list[PrefillEffect] = []
        lease_for_s = self._clocks.lease_for_s
        for ticket in list(self._tickets.values()):
            waited_for_s = now - ticket.since
            if ticket.state.closed and waited_for_s > self._clocks.tombstone_for_s:
                del self._tickets[ticket.transfer_id]
            elif ticket.misses_leg and waited_for_s > self._clocks.seat_wait_for_s:
                effects += self.on_abandoned(ticket.transfer_id, "prefill_leg_missing", now)
            elif ticket.state is JoinState.FILLED and ticket.complete and now - ticket.wanted_at > lease_for_s:
                effects += self.on_abandoned(ticket.transfer_id, "lease_ended", now)
            elif ticket.state in (JoinState.MATCHED, JoinState.DRAINING):
                effects += self._grant_again(ticket, now)
        return effects

    def _count_late(self, transfer_id: TransferId) -> None:
        """A notice about this Rendezvous has come. One that is unknown has yet to begin."""
        if self.state_of(transfer_id).closed:
            self.late += 1

    def _grant_again(self, ticket: PrefillTicket, now: float) -> list[PrefillEffect]:
        if ticket.granted_at is None or now - ticket.granted_at < self._clocks.resend_every_s:
            return []
        return list(ticket.grant(now))

    def _ticket(self, transfer_id: TransferId, now: float) -> PrefillTicket:
        ticket = self._tickets.get(transfer_id)
        if ticket is None:
            ticket = self._tickets[transfer_id] = PrefillTicket(transfer_id, JoinState.EMPTY, now)
        return ticket

    def _on_kv(self, done: PrefillDone, now: float, *, complete: bool) -> list[PrefillEffect]:
        ticket = self._ticket(done.transfer_id, now)
        if not ticket.fits(done, complete=complete):
            self.faults += 1
            return []
        is_news = complete and not ticket.complete
        if not ticket.complete:
            ticket.done, ticket.complete = done, complete
        if is_news:
            ticket.completed_at = now
        was_matched = ticket.state is JoinState.MATCHED
        effects = self._arrive(ticket, Arrival.PREFILLED, now)
        if is_news and was_matched:
            effects += ticket.grant(now)
        return effects

    def _on_read(self, ticket: PrefillTicket, error: str, now: float) -> list[PrefillEffect]:
        ticket.reason = ticket.reason or error
        return self._walk(ticket, Arrival.WRITER_FAILED if error else Arrival.WRITER_DONE, now)

    def _arrive(self, ticket: PrefillTicket, arrival: Arrival, now: float) -> list[PrefillEffect]:
        """The arrival has moved the Rendezvous, and its push goes on, or has ended."""
        effects = self._walk(ticket, arrival, now)
        if ticket.state in (JoinState.MATCHED, JoinState.DRAINING):
            effects += self._go_on(ticket, now)
        return effects

    def _go_on(self, ticket: PrefillTicket, now: float) -> list[PrefillEffect]:
        """Whatever may go out now is ordered; when nothing is under way and nothing will be, the mover has ended."""
        push = ticket.push
        if ticket.registration is None or ticket.done is None:
            return []
        if push is None:
            unread = ticket.state is JoinState.DRAINING and ticket.granted_at is None
            return self._walk(ticket, Arrival.WRITER_FAILED, now) if unread else []
        effects: list[PrefillEffect] = []
        while ticket.state is JoinState.MATCHED:
            write = ticket.next_write(self._limits)
            if write is None:
                break
            effects.append(write)
        if push.num_in_flight:
            return effects
        ticket.reason = ticket.reason or push.error
        if push.ended and not push.error and ticket.complete:
            effects += self._walk(ticket, Arrival.WRITER_DONE, now)
        elif push.error or ticket.state is JoinState.DRAINING:
            effects += self._walk(ticket, Arrival.WRITER_FAILED, now)
        return effects

    def _walk(self, ticket: PrefillTicket, arrival: Arrival, now: float) -> list[PrefillEffect]:
        row = join(ticket.state, arrival)
        if row is None:
            self.faults += 1
            return []
        state, ordered = row
        effects: list[PrefillEffect] = []
        if state is not ticket.state:
            ticket.state, ticket.since = state, now
            effects.append(Walked(ticket.transfer_id, arrival, state, ticket.note(arrival)))
        effects.extend(_orders(ticket, ordered, now))
        return effects


def _orders(ticket: PrefillTicket, ordered: tuple[JoinEffect, ...], now: float) -> Iterator[PrefillEffect]:
    registration = ticket.registration
    for effect in ordered:
        if effect is JoinEffect.FREE_KV:
            yield FreeKV(ticket.transfer_id)
        elif registration is None:
            continue
        elif effect is JoinEffect.FREE_SEATS:
            yield FreeSeats(ticket.transfer_id, registration.decode_engine_id, ticket.reason, ticket.begun)
        elif effect is JoinEffect.STOP_WRITER:
            yield StopWriter(registration)
        elif registration.mode is Mode.PUSH:
            ticket.push = Push(registration.first_token, registration.num_tokens)
        else:
            yield from ticket.grant(now)
