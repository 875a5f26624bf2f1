"""Door: where a request whose body is whole becomes an Exchange, whichever data path it came by."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from router.api.gate import Gate
from router.api.hints import Hints
from router.api.intake import read_intake
from router.api.wishes import PHASE_HEADERS, TOTAL_HEADERS, priority_of, shortened, total_s
from router.contract.errors import Impossible, MediaUnsupported, TandemError
from router.contract.wire import MAX_ID_CHARS
from router.core.intake import Endpoint
from router.core.record import MAX_MODEL_CHARS, Record
from router.core.trace import BAGGAGE, TRACEPARENT, TRACESTATE, Sampler, header_lines
from router.driver.ending import outcome_of
from router.driver.exchange import Exchange
from router.driver.ports import ClientPort
from router.driver.router import Router

LOG = logging.getLogger("tandem.router")


HOT_PATHS = {endpoint.encode("ascii"): endpoint for endpoint in Endpoint}
"""Paths that are taken before any framework sees them."""

_TRACE_HEADERS = (TRACEPARENT, TRACESTATE, BAGGAGE)
NOT_PLAIN = frozenset({b"expect", b"upgrade", b"transfer-encoding"})
"""Headers of requests that are carried behind ASGI, whose server knows what they ask for."""
_READ_HEADERS = frozenset({b"x-request-id", b"content-encoding", *TOTAL_HEADERS, *PHASE_HEADERS, *_TRACE_HEADERS})


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What is let in."""

    max_body_bytes: int = 64 * 1024 * 1024
    max_head_bytes: int = 64 * 1024
    arrival_s: float = 60.0
    """A request must have arrived as a whole within so many seconds of its first byte."""


class Door:
    """Lets requests into one Router."""

    hints: Hints | None = None
    """What clients may say of a request's place; None: nothing is listened to."""
    sampler: Sampler | None = None
    """Decides what is traced; None: nothing is."""
    priority_from = "none"
    """Where a request's priority is read (see wishes)."""
    priority_ahead = 0
    """The best priority that a client may name is minus this."""

    def __init__(
        self, router: Router, limits: DoorLimits, gate: Gate | None = None, *, escorted: frozenset[bytes] = NOT_PLAIN
    ) -> None:
        """Requests with one of the headers `escorted` take the ordinary way through ASGI, however plain they are."""
        self.router = router
        self.limits = limits
        self.gate = gate or Gate()
        self.escorted = escorted

    def enter(
        self, client: ClientPort, endpoint: Endpoint, headers: Mapping[bytes, bytes], body: bytes, caller: str = ""
    ) -> Exchange | None:
        """The request is being carried out (an Exchange), or `client` has been answered already (None).

        Args:
            headers: lower-case names; of a repeated header, one.
            body: the whole of it.
            caller: as the gate knows it.
        """
        arrived_at = time.monotonic()
        # Most requests carry none of the headers that matter here; one set operation tells.
        plain = _READ_HEADERS.isdisjoint(headers)
        request_id = self.router.mint()
        client_id = "" if plain else sane_id(headers.get(b"x-request-id", b""))
        client.name(client_id or request_id)
        model = ""
        try:
            allowed_s, trace = (self.router.deadlines.total_s, b"") if plain else self._read_headers(headers)
            intake = read_intake(endpoint, body, trace, client_id)
            intake.arrived_at = arrived_at
            if self.sampler is not None:
                intake.traced = self.sampler.begin(headers, request_id)
            intake.caller = caller
            if not plain and not PHASE_HEADERS.isdisjoint(headers):
                intake.deadlines = shortened(headers, self.router.deadlines, intake)
            if self.priority_from != "none":
                named = priority_of(self.priority_from, headers, intake.body)
                intake.priority = max(named, -self.priority_ahead)
            if self.hints is not None:
                self.hints.apply(intake, headers)
            model = intake.model
            opened = self.router.open(client, intake, request_id, allowed_s)
        except TandemError as error:
            opened = error
        except Exception as error:  # the one boundary of a request: a bug costs this request only
            LOG.exception("request %s failed by a bug", request_id)
            opened = Impossible(f"The router failed ({type(error).__name__}); its log says why.")
        if isinstance(opened, Exchange):
            return opened
        client.refuse(opened)
        self._note_refusal(
            Record(time.time(), request_id, client_id, model[:MAX_MODEL_CHARS], endpoint, False, caller=caller), opened
        )
        return None

    def turn_away(self, client: ClientPort, endpoint: str, headers: Mapping[bytes, bytes], error: TandemError) -> None:
        """`client` has been refused before its body was read."""
        request_id, client_id = self.router.mint(), sane_id(headers.get(b"x-request-id", b""))
        client.name(client_id or request_id)
        client.refuse(error)
        self._note_refusal(Record(time.time(), request_id, client_id, "", endpoint, False), error)

    def _note_refusal(self, record: Record, error: TandemError) -> None:
        record.status, record.code = error.http_status, error.code
        record.outcome = outcome_of(error.http_status)
        self.router.clerk.put(record)

    def _read_headers(self, headers: Mapping[bytes, bytes]) -> tuple[float, bytes]:
        """The wanted total deadline, seconds, and the header lines for both legs."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise MediaUnsupported("Send the body without Content-Encoding.")
        return total_s(headers, self.router.deadlines.total_s), _trace_lines(headers)


def name_of(headers: Mapping[bytes, bytes], router: Router) -> str:
    """The X-Request-Id of an answer that no Exchange gives: the client's own, or a new one."""
    return sane_id(headers.get(b"x-request-id", b"")) or router.mint()


def sane_id(value: bytes) -> str:
    """A client's request id, or empty for one that is too long or not printable ASCII."""
    if not value or len(value) > MAX_ID_CHARS or not value.isascii():
        return ""
    text = value.decode("ascii")
    return text if text.isprintable() else ""


def _trace_lines(headers: Mapping[bytes, bytes]) -> bytes:
    return header_lines(headers, *_TRACE_HEADERS) if TRACEPARENT in headers else b""
