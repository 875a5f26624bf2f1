"""Record: the facts of one request that outlive it, for metrics and the log. Of what a client wrote it holds ids."""

from __future__ import annotations

import msgspec

from router.contract.ledger import Outcome

MAX_MODEL_CHARS = 256
"""More of a name that no engine has is not kept: a client may send megabytes."""


class Earlier(msgspec.Struct, gc=False):
    """An attempt that another one followed. Times as in Record."""

    attempt: int
    prefill: str
    decode: str
    sent_s: float
    ended_s: float
    code: str


class Record(msgspec.Struct, gc=False):
    """One finished request, logged as it is.

    Times are seconds since the request had been read as a whole, 0.0 for what has not happened. A msgspec Struct,
    because one is made per request, for a fifth of what a dataclass of this size costs.
    """

    at: float
    """Unix seconds at which the request had been read."""
    request_id: str
    client_id: str
    """The client's own X-Request-Id, or empty."""
    model: str
    endpoint: str
    stream: bool
    """The answer was streamed; without an answer, the client had asked for it."""
    mode: str = ""
    """Of the last attempt, as are reason, prefill, decode, sent_s and prefilled_s."""
    reason: str = ""
    prefill: str = ""
    decode: str = ""
    attempts: int = 0
    door_s: float = 0.0
    """The request had been validated."""
    queued_s: float = 0.0
    """How long it waited to be admitted; a duration."""
    placed_s: float = 0.0
    """All that could be sent of the first attempt had been sent."""
    sent_s: float = 0.0
    """The first leg left."""
    prefilled_s: float = 0.0
    seats_s: float = 0.0
    """From decode's leg to its Registration, as decode's shim tells it; a duration."""
    kv_s: float = 0.0
    """From there until all of the KV cache had landed; a duration."""
    first_byte_s: float = 0.0
    """The first body byte of a good answer arrived from decode."""
    content_s: float = 0.0
    """So did the first event of a stream with content: text, reasoning or a tool call, not the role alone."""
    last_byte_s: float = 0.0
    ended_s: float = 0.0
    num_events: int = 0
    """Events of a stream from the first content on, [DONE] not counted."""
    prompt_tokens: int = 0
    """From the answer's usage, or 0; so are completion_tokens."""
    completion_tokens: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    status: int = 0
    """HTTP status that the client saw; 499 when it left before there was one."""
    outcome: Outcome = Outcome.FAILED
    code: str = ""
    """Error code, or empty when served."""
    trace_id: str = ""
    """W3C trace id where the request is traced."""
    parent_id: str = ""
    """The client's own span, or empty."""
    earlier: tuple[Earlier, ...] = ()
    """Attempts before the last one."""
    caller: str = ""
    """Name of the API key, or empty."""
    chosen_s: float = 0.0
    """Decode was chosen and its leg left, where that was later than prefill's; 0.0: both left together."""


def rendezvous_of(record: Record) -> tuple[float, float, float]:
    """When decode's leg left, its seats were registered, and its KV cache was whole, as decode's shim tells it."""
    sent_s = record.chosen_s or (record.prefilled_s if record.mode == "pull" else record.sent_s)
    registered_s = sent_s + record.seats_s
    return sent_s, registered_s, registered_s + record.kv_s
