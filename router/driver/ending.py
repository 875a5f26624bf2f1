"""Ending: how a request that is over counts."""

from __future__ import annotations

from router.contract.ledger import Outcome
from router.core.lifecycle import Client
from router.legs.answer import Verdict

GONE_STATUS = 499  # noted for a client that left before it had an answer; never sent

_GONE, _CLIENT_FAILED, _SERVED = Client.GONE, Client.FAILED, Outcome.SERVED


def ending_of(client: Client, status: int, verdict: Verdict | None) -> tuple[Outcome, str, int]:
    """Outcome, error code and HTTP status of a request whose client stands there and has seen `status` (0: none)."""
    if client is _GONE:
        return Outcome.ABANDONED, "client_gone", status or GONE_STATUS
    if client is _CLIENT_FAILED:
        assert verdict is not None  # every way into a failure sets it
        return outcome_of(status), verdict.error.code, status
    return _SERVED, "", status


def outcome_of(status: int) -> Outcome:
    """What an error with this HTTP status is: refused for what the caller has asked, or failed by what we could not."""
    return Outcome.REFUSED if 400 <= status < 500 else Outcome.FAILED
