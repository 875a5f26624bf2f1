"""Entries of the ledger: the facts that routers and shims put down about an attempt, and the Story they add up to.

An entry is handed over and forgotten: nobody waits for the store between a request and its legs. The ledger is for
recovery, for other replicas and for whoever reads `tandem story`; the shims' own Rendezvous moves the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from router.contract.ids import Attempt, Epoch, InstanceId, TransferId, transfer_id_of
from router.contract.rendezvous import Arrival, JoinEffect, JoinState, Ticket


class Outcome(StrEnum):
    """How an attempt ended."""

    SERVED = "served"
    REFUSED = "refused"
    FAILED = "failed"
    ABANDONED = "abandoned"


class Opened(msgspec.Struct, frozen=True, gc=False):
    """The router has placed an attempt; its ticket is open until Closed, or until its deadline has long passed."""

    ticket: Ticket

    @property
    def transfer_id(self) -> TransferId:
        """The attempt's id."""
        return transfer_id_of(self.ticket.request_id, self.ticket.attempt)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A fact that moves the attempt's Rendezvous; may be put down twice and by several writers, in any order."""

    transfer_id: TransferId
    arrival: Arrival
    note: str = ""


@dataclass(frozen=True, slots=True)
class Noted:
    """A line for the Story only, such as `first_token`. `note` never holds what a client wrote."""

    transfer_id: TransferId
    stage: str
    note: str = ""


Course = tuple[str, str, str, float, float, float, float]
"""Error code or "", mode, and why this mode; then when the last attempt was sent, prefill answered, the first byte came
and all was over, in seconds since the request had been read, 0.0 for never."""


class Closed(msgspec.Struct, frozen=True, gc=False):
    """The attempt has ended for its client; the first outcome stands."""

    transfer_id: TransferId
    outcome: Outcome
    note: str | Course = ""
    """A Course is put into words by who reads the Story, since writers have no time."""


Entry = Opened | Arrived | Noted | Closed


@dataclass(frozen=True, slots=True)
class OpenTicket:
    """What a reaper needs to know of a ticket that its owner has not closed."""

    transfer_id: TransferId
    owner: str
    prefill: InstanceId | None
    prefill_epoch: Epoch
    decode: InstanceId | None
    decode_epoch: Epoch
    overdue_s: float
    """Seconds since its deadline; negative before."""


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One line of a request's Story."""

    at_s: float
    """Unix seconds of the store's clock, less the time that the line waited in its writer."""
    attempt: Attempt
    writer: str
    stage: str
    """`opened`, an Arrival, a Noted stage, or an Outcome."""
    note: str
    before: JoinState | None = None
    """The Rendezvous before this line; None for a line that does not touch it, or that was refused."""
    after: JoinState | None = None
    effects: tuple[JoinEffect, ...] = ()
    posted_s: float = 0.0
    """The writer's own monotonic clock, which all writers of one machine share."""
