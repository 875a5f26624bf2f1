"""Record: the facts of one request that outlive it, for metrics and the log line. It holds nothing a client wrote."""

from __future__ import annotations

import msgspec

from router.contract.ledger import Outcome


class Record(msgspec.Struct, gc=False):
    """Filled while the request runs. Times are monotonic seconds, 0.0 for what has not happened.

    A msgspec Struct because one is made per request, for a fifth of what a dataclass of this size costs.
    """

    request_id: str
    client_id: str
    """The client's own X-Request-Id, or empty."""
    model: str
    endpoint: str
    stream: bool
    arrived_at: float
    """The whole request had been read."""
    mode: str = ""
    reason: str = ""
    prefill: str = ""
    """Instance id of the last attempt, as are decode, mode and reason."""
    decode: str = ""
    attempts: int = 0
    sent_at: float = 0.0
    """The first leg of the last attempt left."""
    first_sent_at: float = 0.0
    """The first leg of the first attempt left."""
    prefilled_at: float = 0.0
    first_byte_at: float = 0.0
    """The first body byte of a good answer arrived from decode."""
    last_byte_at: float = 0.0
    ended_at: float = 0.0
    num_events: int = 0
    completion_tokens: int = 0
    """From the answer's usage, or 0."""
    status: int = 0
    """HTTP status that the client saw; 499 when it left before there was one."""
    outcome: Outcome = Outcome.FAILED
    code: str = ""
    """Error code, or empty when served."""
