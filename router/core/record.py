"""Record: the facts of one request that outlive it, for metrics and the log. Of what a client wrote it holds ids."""

from __future__ import annotations

import msgspec

from router.contract.ledger import Outcome


class Record(msgspec.Struct, gc=False):
    """One finished request, logged as it is.

    Times are seconds since the request had been read as a whole, 0.0 for what has not happened. A msgspec Struct,
    because one is made per request, for a fifth of what a dataclass of this size costs.
    """

    at: float
    """Unix seconds at which this was written, some milliseconds after the end."""
    request_id: str
    client_id: str
    """The client's own X-Request-Id, or empty."""
    model: str
    endpoint: str
    stream: bool
    mode: str = ""
    """Of the last attempt, as are reason, prefill, decode, sent_s and prefilled_s."""
    reason: str = ""
    prefill: str = ""
    decode: str = ""
    attempts: int = 0
    placed_s: float = 0.0
    """All that could be sent of the first attempt had been sent."""
    sent_s: float = 0.0
    """The first leg left."""
    prefilled_s: float = 0.0
    first_byte_s: float = 0.0
    """The first body byte of a good answer arrived from decode."""
    last_byte_s: float = 0.0
    ended_s: float = 0.0
    num_events: int = 0
    completion_tokens: int = 0
    """From the answer's usage, or 0."""
    status: int = 0
    """HTTP status that the client saw; 499 when it left before there was one."""
    outcome: Outcome = Outcome.FAILED
    code: str = ""
    """Error code, or empty when served."""
