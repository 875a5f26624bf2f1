"""What an engine's answer is worth: its head as the client may see it, and the verdict on one that is no success."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from router.contract.errors import (
    BadRequest,
    Blame,
    DeadlinePassed,
    Draining,
    EngineUnauthorized,
    LegError,
    NoSeats,
    Overloaded,
    RegistrationTimeout,
    StaleAttempt,
    TandemError,
    TransferError,
)
from router.legs.connection import Headers

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, 7.6.1: meant for this connection only, as is whatever `Connection` names."""

_OURS = HOP_BY_HOP | {b"content-length", b"date", b"server", b"x-request-id", b"server-timing"}

_TIMING = re.compile(rb"(\w+);dur=(\d{1,9}(?:\.\d{1,9})?)")
"""A metric of Server-Timing with its duration, ms (W3C Server Timing, section 2)."""

_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


@dataclass(slots=True)
class Answer:
    """A whole answer, to be passed on byte for byte. `headers` are fit for the client. Not frozen: see Intake."""

    status: int
    headers: Headers
    body: bytes


class Mark(StrEnum):
    """What a failure says about the instance that it came from."""

    NONE = "none"
    """Nothing: it was about the request, or about somebody else."""
    BUSY = "busy"
    """It works, and wants to be left alone for a while."""
    INSTANCE = "instance"
    PAIR = "pair"
    """The KV cache did not get from this prefill to this decode; each may be well with others."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failed leg means."""

    error: TandemError
    answer: Answer | None
    """What the client gets if this failure is final; None means the error's own envelope."""
    retryable: bool
    blamed: Blame
    """The role whose instance another attempt should avoid; ROUTER: none."""
    mark: Mark = Mark.NONE
    rest_s: float = 0.0
    """For how long a busy instance wants to be left alone, seconds."""


def client_headers(headers: Headers) -> Headers:
    """The engine's headers less those of its connection and those that the router sets itself."""
    kept = [header for header in headers if header[0] not in _OURS]
    if b"connection" in dict(headers):
        named = {
            token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")
        }
        return [header for header in kept if header[0] not in named]
    return kept


def stream_headers(headers: Headers) -> Headers:
    """`client_headers` of a stream: nobody on the way may cache or collect it."""
    kept = client_headers(headers)
    names = dict(kept)
    return kept + [header for header in _STREAM_HEADERS if header[0] not in names]


def read_timing(headers: Headers) -> tuple[float, float]:
    """Seconds from decode's leg to its Registration, and from there until its KV cache was whole; 0.0 when untold."""
    for name, value in headers:
        if name == b"server-timing":
            told = {metric: float(dur) / 1000 for metric, dur in _TIMING.findall(value)}
            return told.get(b"seats", 0.0), told.get(b"kv", 0.0)
    return 0.0, 0.0


def is_stream(headers: Headers) -> bool:
    """True when the answer is one of server-sent events."""
    for name, value in headers:  # noqa: SIM110 - a generator costs three times as much
        if name == b"content-type" and value.startswith(b"text/event-stream"):
            return True
    return False


def is_encoded(headers: Headers) -> bool:
    """True when the body is compressed, or otherwise not what its content type says."""
    return any(name == b"content-encoding" and value != b"identity" for name, value in headers)


class _Error(msgspec.Struct, gc=False):
    code: object = None
    message: object = None


class _Envelope(msgspec.Struct, gc=False):
    error: _Error


class _Flat(msgspec.Struct, gc=False):
    """An envelope, or vLLM's older form: the error's members without one."""

    error: _Error | None = None
    code: object = None


_FLAT = msgspec.json.Decoder(_Flat)
_ENVELOPES = msgspec.json.Decoder(_Envelope)


def _classes(root: type[TandemError]) -> Iterator[type[TandemError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


_CLASS_OF_CODE: dict[str, type[TandemError]] = {cls.code: cls for cls in _classes(TandemError)}
_UNAUTHORIZED = frozenset({401, 403, 407})
_MAY_PASS_ELSEWHERE = frozenset({429, 502, 503, 504})


def judge(side: Blame, status: int, headers: Headers, body: bytes) -> Verdict:
    """The verdict on an answer whose status is not 2xx.

    4xx go to the client byte for byte: they are about its request; but 401, 403 and 407 are about the router's own key,
    since no client's is ever passed on. So does a 5xx in OpenAI's envelope that says more
    than "server error" (503, or a code of our own tree); any other 5xx becomes a 502 or 504 of ours.
    """
    if status in _UNAUTHORIZED:
        refused = f"The {side} instance answered {status} to the router; give it the right engine_key."
        wrong_key = EngineUnauthorized(refused, side=side)
        return Verdict(wrong_key, None, wrong_key.retryable, side, Mark.INSTANCE)
    answer = Answer(status, client_headers(headers), body)
    envelope = _envelope(body)
    code = envelope or ""
    if 400 <= status < 500:
        error: TandemError = BadRequest(f"The {side} instance refused the request with {status}.")
        error.code = code or f"engine_{status}"
        if status == 429:
            return Verdict(error, answer, True, side, Mark.BUSY, _retry_after_s(headers))
        return Verdict(error, answer, False, side)
    known = _CLASS_OF_CODE.get(code)
    retryable = status in _MAY_PASS_ELSEWHERE and (known is None or known.retryable)
    blamed = Blame.PREFILL if known is not None and issubclass(known, TransferError) else side
    failure = LegError(f"The {side} instance answered {status}; its own log says why.", side=side)
    failure.code = code or "engine_error"
    passed_on = answer if envelope is not None and (status == 503 or known is not None) else None
    mark = _mark_of(status, headers, known)
    return Verdict(failure, passed_on, retryable, blamed, mark, _retry_after_s(headers) if mark is Mark.BUSY else 0.0)


def judge_event(side: Blame, payload: bytes) -> Verdict:
    """The verdict on a stream whose first event is this error: that on an answer which has it as its body.

    Its status is that of the code, which is one of our tree or, with vLLM, a status itself; else 502.
    """
    try:
        told = _FLAT.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        told = _Flat()
    code = told.code if told.error is None else told.error.code
    status = 502
    if isinstance(code, str) and code in _CLASS_OF_CODE:
        status = _CLASS_OF_CODE[code].http_status
    elif isinstance(code, int) and (400 <= code < 500 or code in _MAY_PASS_ELSEWHERE):
        status = code
    return judge(side, status, [(b"content-type", b"application/json")], payload)


def _mark_of(status: int, headers: Headers, known: type[TandemError] | None) -> Mark:
    """What a 5xx says about its instance: a code of ours is exact, else 503 with Retry-After is busy and 500 a bug."""
    if known is not None and issubclass(known, TransferError):
        return Mark.NONE if known is StaleAttempt else Mark.PAIR
    if known in (NoSeats, DeadlinePassed):
        return Mark.NONE
    if known in (Draining, Overloaded, RegistrationTimeout) or (
        status == 503 and known is None and b"retry-after" in dict(headers)
    ):
        return Mark.BUSY
    return Mark.INSTANCE if status in _MAY_PASS_ELSEWHERE else Mark.NONE


def _retry_after_s(headers: Headers) -> float:
    """The answer's Retry-After, or a second for one that names none (or a date)."""
    stated = dict(headers).get(b"retry-after", b"")
    return float(stated) if stated.isdigit() and len(stated) < 9 else 1.0


def _envelope(body: bytes) -> str | None:
    """`error.code` of OpenAI's envelope, empty for one without a code in words; None when the body is no envelope."""
    try:
        code = _ENVELOPES.decode(body).error.code
    except (msgspec.DecodeError, RecursionError):
        return None
    return code if isinstance(code, str) else ""
