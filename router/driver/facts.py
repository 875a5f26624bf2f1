"""Facts: what a request leaves behind when it is over, for the ticket, the books and the log."""

from __future__ import annotations

from router.contract.ledger import Outcome
from router.core.placement import Placement
from router.core.record import Earlier

HEDGE_LOST = "hedge_lost"
"""Code of an attempt that another one of the same request has overtaken."""


class Facts:
    """Facts of one request, defaults of the class as long as they cost nothing.

    Times are seconds since the request had been read as a whole, 0.0 for what has not happened; those that end in `_at`
    are monotonic seconds.
    """

    placement: Placement | None = None
    """Of the last attempt, as are sent_s and prefilled_s."""
    attempts = 0
    earlier: tuple[Earlier, ...] = ()
    """Attempts before the last one."""
    door_s = 0.0
    """The request had been validated."""
    queued_s = 0.0
    """Spent in the line for admission."""
    placed_s = 0.0
    """All that could be sent of the first attempt had been sent."""
    sent_s = 0.0
    chosen_s = 0.0
    """Decode's leg left, where it was chosen late."""
    prefilled_s = 0.0
    first_byte_s = 0.0
    """The first body byte of a good answer arrived from decode."""
    last_byte_at = 0.0
    """Monotonic seconds."""
    ended_s = 0.0
    status = 0
    """HTTP status that the client saw."""
    outcome = Outcome.FAILED
    code = ""
