"""Trace: a request's place in a W3C trace (Trace Context, level 1), and the ids of its spans.

Ids are derived, so nothing has to be kept until the spans are built from the Record: a trace that begins here has the
digits of the request's id, and span n of a request is n above the first 16 of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from router.contract.ids import RequestId

TRACEPARENT, TRACESTATE, BAGGAGE = b"traceparent", b"tracestate", b"baggage"

_PRINTABLE = re.compile(rb"[\t\x20-\x7e]*")

ROOT = 0
_ID_AT = len("req-")
_SPAN_DIGITS, _TRACE_DIGITS = 16, 32
_MODULUS = 1 << 64
# Versions after 00 may append more, but ff is none.
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(slots=True)
class Trace:
    """A request that is traced. One is made per traced request, so it is not frozen."""

    trace_id: str
    parent_id: str
    """The client's span, or empty."""
    request_id: RequestId
    rest: bytes
    """Header lines that both legs carry as they came: tracestate and baggage, each ending in CRLF."""

    def lines(self, number: int) -> bytes:
        """Header lines of a leg that is span `number` of this request."""
        return b"traceparent: 00-%b-%b-01\r\n%b" % (
            self.trace_id.encode("ascii"),
            span_id(self.request_id, number).encode("ascii"),
            self.rest,
        )


class Sampler:
    """Decides which requests are traced."""

    __slots__ = ("_below",)

    def __init__(self, share: float) -> None:
        """`share` of the requests whose client has not decided, 0 to 1."""
        self._below = round(share * (1 << 32))

    def begin(self, headers: Mapping[bytes, bytes], request_id: RequestId) -> Trace | None:
        """The Trace of a request with these headers, or None when nothing of it is recorded here.

        A client that has decided is followed; a `traceparent` that cannot be read begins a new trace, without its
        `tracestate`, as section 3.2 of Trace Context wants it.
        """
        baggage = header_lines(headers, BAGGAGE)
        given = headers.get(TRACEPARENT)
        parent = _PARENT.fullmatch(given) if given is not None else None
        if parent is None or (parent[1] == b"00" and parent[5]):
            if int(request_id[-8:], 16) >= self._below:
                return None
            return Trace(request_id[_ID_AT : _ID_AT + _TRACE_DIGITS], "", request_id, baggage)
        if not int(parent[4], 16) & 1:
            return None
        rest = header_lines(headers, TRACESTATE) + baggage
        return Trace(parent[2].decode("ascii"), parent[3].decode("ascii"), request_id, rest)


def span_id(request_id: str, number: int) -> str:
    """Span `number` of a request of ours, 16 hexadecimal digits, never all zero."""
    first = int(request_id[_ID_AT : _ID_AT + _SPAN_DIGITS], 16)
    return f"{(first + number) % _MODULUS or _MODULUS - 1:016x}"


def prefill_span(attempt: int) -> int:
    """The number of this attempt's prefill leg."""
    return 2 * attempt


def decode_span(attempt: int) -> int:
    """The number of this attempt's decode leg."""
    return 2 * attempt + 1


def header_lines(headers: Mapping[bytes, bytes], *names: bytes) -> bytes:
    """These headers as lines for a leg, those that there are.

    Engines differ in what else they take; the standard has nothing but printable ASCII in them.
    """
    given = ((name, headers[name]) for name in names if name in headers)
    return b"".join([b"%b: %b\r\n" % (name, value) for name, value in given if _PRINTABLE.fullmatch(value)])
