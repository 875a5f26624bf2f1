"""Problems: every error as an HTTP answer in OpenAI's envelope. The error classes are the table; this renders it."""

from __future__ import annotations

import http

import msgspec

from router.contract.errors import MethodNotAllowed, TandemError, Unauthorized

RETRY_AFTER_S = 1
"""Our budgets free up within a second or not at all; a longer wait would only idle the caller."""

_JSON = (b"content-type", b"application/json")
_RETRY_AFTER = (b"retry-after", b"%d" % RETRY_AFTER_S)
_CHALLENGE = (b"www-authenticate", b"Bearer")


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _Envelope(msgspec.Struct):
    error: _Error


def envelope(error: TandemError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(_Envelope(_Error(error.message, error.type, error.param, error.code)))


def problem_headers(error: TandemError) -> list[tuple[bytes, bytes]]:
    """Content type, and what the status asks for: Retry-After (429, 503), a challenge (401), Allow (405)."""
    headers = [_JSON]
    if error.http_status in (429, 503):
        headers.append(_RETRY_AFTER)
    if isinstance(error, Unauthorized):
        headers.append(_CHALLENGE)
    if isinstance(error, MethodNotAllowed) and error.param:
        headers.append((b"allow", error.param.encode("ascii")))
    return headers


def status_line(status: int) -> bytes:
    """`HTTP/1.1 <status> <phrase>` with CRLF."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


_STATUS_LINES = {
    int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode("ascii")) for status in http.HTTPStatus
}
