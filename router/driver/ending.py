"""Ending: how a request that is over counts."""

from __future__ import annotations

from router.contract.ledger import Outcome
from router.core.lifecycle import Client
from router.legs.answer import Verdict

GONE_STATUS = 499  # noted for a client that left before it had an answer; never sent

_GONE, _CLIENT_FAILED = Client.GONE, Client.FAILED
_SERVED_WELL = (Outcome.SERVED, "")


def ending_of(client: Client, status: int, verdict: Verdict | None) -> tuple[Outcome, str]:
    """Outcome and error code of a request whose client has come to stand there and has seen this HTTP status."""
    if client is _GONE:
        return Outcome.ABANDONED, "client_gone"
    if client is _CLIENT_FAILED:
        assert verdict is not None  # every way into a failure sets it
        return Outcome.REFUSED if 400 <= status < 500 else Outcome.FAILED, verdict.error.code
    return _SERVED_WELL
