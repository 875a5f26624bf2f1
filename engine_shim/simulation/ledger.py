"""The ledger as the store keeps it: the rules of `router/store/lua/post.lua` and `reap.lua`, in Python.

Arrivals walk JOIN; a mover's report that comes before its match is held; Registered and Prefilled of an attempt that a
newer one has replaced are fenced. The first outcome stands. A claimed ticket is its claimer's for a while.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from router.contract.ids import TransferId, request_of, transfer_id_of
from router.contract.ledger import Arrived, Closed, Entry, Noted, Opened, OpenTicket, Outcome
from router.contract.rendezvous import Arrival, JoinEffect, JoinState, Ticket, join

_FENCED = (Arrival.REGISTERED, Arrival.PREFILLED)


@dataclass(slots=True)
class Attempted:
    """One attempt as the ledger knows it."""

    state: JoinState = JoinState.EMPTY
    early: Arrival | None = None
    outcome: Outcome | None = None
    writes: int = 0
    """How often an arrival has ordered the Write."""


@dataclass(slots=True)
class _Opened:
    ticket: Ticket
    deadline_at: float
    due_at: float
    """When anybody may claim it."""
    owned: bool = True
    """Its owner's, until somebody has claimed it."""


@dataclass(slots=True)
class Ledger:
    """All attempts, and the tickets that are open."""

    attempts: dict[TransferId, Attempted] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    opened: dict[TransferId, _Opened] = field(default_factory=dict)
    fenced: int = 0

    def put(self, entry: Entry, now: float, overdue_s: float) -> None:
        """The entry is put down."""
        if isinstance(entry, Opened):
            request_id, number = entry.ticket.request_id, entry.ticket.attempt
            transfer_id = transfer_id_of(request_id, number)
        else:
            transfer_id = entry.transfer_id
            request_id, number = request_of(transfer_id)
        self.newest[request_id] = max(self.newest.get(request_id, 0), number)
        attempt = self.attempts.setdefault(transfer_id, Attempted())
        match entry:
            case Opened(ticket):
                if attempt.outcome is None:
                    deadline_at = now + ticket.deadline_for_s
                    self.opened[transfer_id] = _Opened(ticket, deadline_at, deadline_at + overdue_s)
            case Arrived(_, arrival, _):
                if number < self.newest[request_id] and arrival in _FENCED:
                    self.fenced += 1
                else:
                    _walk(attempt, arrival)
            case Closed(_, outcome, _):
                attempt.outcome = attempt.outcome or outcome
                self.opened.pop(transfer_id, None)
            case Noted():
                pass  # a line for the Story, which is not kept here

    def claim(self, gone: Collection[str], now: float, claim_for_s: float) -> list[OpenTicket]:
        """Tickets of `gone` owners, and overdue ones, that are the caller's to end for `claim_for_s` seconds."""
        claimed = []
        for transfer_id, opened in self.opened.items():
            if (opened.owned and opened.ticket.owner in gone) or opened.due_at <= now:
                opened.owned, opened.due_at = False, now + claim_for_s
                ticket = opened.ticket
                claimed.append(
                    OpenTicket(
                        transfer_id,
                        ticket.owner,
                        ticket.prefill,
                        ticket.prefill_epoch,
                        ticket.decode,
                        ticket.decode_epoch,
                        now - opened.deadline_at,
                    )
                )
        return claimed

    def owners(self) -> frozenset[str]:
        """Whose tickets are open and unclaimed."""
        return frozenset(opened.ticket.owner for opened in self.opened.values() if opened.owned)


def _walk(attempt: Attempted, arrival: Arrival) -> None:
    row = join(attempt.state, arrival)
    if row is None:
        attempt.early = attempt.early or arrival
        return
    attempt.state, effects = row
    attempt.writes += JoinEffect.WRITE in effects
    held = None if attempt.early is None else join(attempt.state, attempt.early)
    if held is not None:
        attempt.state = held[0]
