"""Spans: one per room that a request has passed, from its Record; of the shims' rooms as decode's shim tells it.

request                      SERVER   as long as the request; child of the client's own span
├─ door · queue · place      INTERNAL
├─ prefill leg, decode leg   CLIENT   of each attempt; engines continue the trace below them
│                                     decode's events: registered, rendezvous, kv_whole, first_token
├─ rendezvous · transfer     INTERNAL decode's leg until both sides have met, and from there until its KV cache is whole
└─ relay                     INTERNAL from the first bytes to the last
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from router.contract.ledger import Outcome
from router.core.record import Record, rendezvous_of
from router.core.trace import ROOT, decode_span, prefill_span

Value = str | int | float | bool

_ROOMS_FROM = 1_000_000
"""Numbers of spans that no leg carries."""


@dataclass(slots=True)
class SpanFacts:
    """A span, times in seconds since the request had been read."""

    number: int
    name: str
    kind: str
    """`server`, `client` or `internal`."""
    from_s: float
    to_s: float
    attributes: dict[str, Value]
    events: list[tuple[str, float]] = field(default_factory=list)
    error: str = ""
    """The code of the error with which it ended."""


def spans_of(record: Record) -> list[SpanFacts]:
    """All spans of a request, its own first; named as in OpenTelemetry's conventions where there are any."""
    ended_s = record.ended_s
    attributes: dict[str, Value] = {
        "http.request.method": "POST",
        "url.path": record.endpoint,
        "http.response.status_code": record.status,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "tandem.request_id": record.request_id,
        "tandem.mode": record.mode,
        "tandem.reason": record.reason,
        "tandem.outcome": str(record.outcome),
        "tandem.attempts": record.attempts,
    }
    failed = record.outcome is Outcome.FAILED
    root = SpanFacts(ROOT, f"POST {record.endpoint}", "server", 0.0, ended_s, _told(attributes))
    root.error = record.code if failed else ""
    return [root, *_rooms(record), *_legs(record)]


def _told(attributes: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value not in ("", 0)}


def _rooms(record: Record) -> Iterator[SpanFacts]:
    sent_s = record.earlier[0].sent_s if record.earlier else record.sent_s
    queued_s = record.door_s + record.queued_s
    first_s = record.content_s or record.first_byte_s
    decode_sent_s, _, met_s, ready_s = _meeting(record)
    rooms = (
        ("door", 0.0, record.door_s),
        ("queue", record.door_s, queued_s if record.queued_s else 0.0),
        ("place", queued_s, sent_s),
        ("rendezvous", decode_sent_s, met_s),
        ("transfer", met_s, ready_s),
        ("relay", first_s, record.last_byte_s if first_s else 0.0),
    )
    for number, (name, from_s, to_s) in enumerate(rooms, _ROOMS_FROM):
        if to_s > 0.0:
            yield SpanFacts(number, name, "internal", from_s, to_s, {})


def _meeting(record: Record) -> tuple[float, float, float, float]:
    """When decode's leg left, its seats were registered, prefill was done as well, and KV was whole; else all 0.0."""
    if not record.attempts or not (record.seats_s or record.kv_s):
        return 0.0, 0.0, 0.0, 0.0
    sent_s, registered_s, ready_s = rendezvous_of(record)
    return sent_s, registered_s, min(max(registered_s, record.prefilled_s), ready_s), ready_s


def _legs(record: Record) -> Iterator[SpanFacts]:
    for lost in record.earlier:
        for number, name, instance in _names(lost.attempt, lost.prefill, lost.decode):
            where = _where(instance, lost.attempt)
            yield SpanFacts(number, name, "client", lost.sent_s, lost.ended_s, where, [], lost.code)
    if not record.attempts:
        return
    error = record.code if record.outcome is Outcome.FAILED else ""
    decode_sent_s, _, _ = rendezvous_of(record)
    for number, name, instance in _names(record.attempts, record.prefill, record.decode):
        leg = SpanFacts(number, name, "client", record.sent_s, record.ended_s, _where(instance, record.attempts))
        if name == "prefill leg":
            leg.to_s = record.prefilled_s or record.ended_s
        else:
            leg.from_s, leg.events, leg.error = decode_sent_s or record.sent_s, _events(record), error
            leg.to_s = record.last_byte_s or record.ended_s
        yield leg


def _names(attempt: int, prefill: str, decode: str) -> Iterator[tuple[int, str, str]]:
    if prefill:
        yield prefill_span(attempt), "prefill leg", prefill
    yield decode_span(attempt), "decode leg", decode


def _where(instance: str, attempt: int) -> dict[str, Value]:
    return {"tandem.instance_id": instance, "tandem.attempt": attempt}


def _events(record: Record) -> list[tuple[str, float]]:
    events = []
    _, registered_s, met_s, ready_s = _meeting(record)
    if ready_s:
        events += [("registered", registered_s), ("rendezvous", met_s), ("kv_whole", ready_s)]
    if record.content_s:
        events.append(("first_token", record.content_s))
    return events
