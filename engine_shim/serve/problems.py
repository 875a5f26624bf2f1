"""Errors as OpenAI's clients expect them: one table from error to status, one envelope.

{"error": {"message": "...", "type": "invalid_request_error", "param": "max_tokens", "code": "bad_request"}}
"""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from router.contract.errors import (
    BadRequest,
    BodyTooLarge,
    Impossible,
    MethodNotAllowed,
    RouteUnknown,
    TandemError,
)

log = logging.getLogger("tandem.shim")

_OF_STATUS: dict[int, tuple[type[TandemError], str]] = {
    404: (RouteUnknown, "There is no such path; see /v1/models, /v1/chat/completions and /v1/completions."),
    405: (MethodNotAllowed, "This path does not take that method; see the Allow header."),
    413: (BodyTooLarge, "The body is too large; send a shorter one."),
}
"""What the web framework refuses on its own account; any other 4xx is a BadRequest."""

RETRY_AFTER_S = 1


class _Problem(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _Envelope(msgspec.Struct):
    error: _Problem


def envelope(error: TandemError) -> bytes:
    """The error as a JSON body."""
    return msgspec.json.encode(_Envelope(_Problem(error.message, error.type, error.param, error.code)))


def problem_headers(error: TandemError) -> dict[str, str]:
    """Headers beside the envelope: when a retry makes sense, after how long."""
    return {"retry-after": str(RETRY_AFTER_S)} if error.http_status in (429, 503) else {}


def problem_response(error: TandemError) -> Response:
    """The error as an HTTP answer."""
    return Response(envelope(error), error.http_status, problem_headers(error), "application/json")


def as_problem(error: Exception) -> TandemError:
    """Any exception as a member of the error tree; one that is no member is logged, and told without its text."""
    match error:
        case TandemError():
            return error
        case HTTPException(status_code=status) if 400 <= status < 500:
            kind, message = _OF_STATUS.get(status, (BadRequest, f"The request is not acceptable: {error.detail}."))
            return kind(message)
    log.error("a request failed in a way that no rule foresees", exc_info=error)
    return Impossible("The engine failed in a way that it should not; the operator finds more in its log.")


async def on_client_gone(_request: Request, _error: Exception) -> Response:
    """FastAPI's exception handler for a client that left while it sent its body: nobody reads this answer."""
    return Response(status_code=400)


async def on_problem(_request: Request, error: Exception) -> Response:
    """FastAPI's exception handler for everything that a route raises."""
    response = problem_response(as_problem(error))
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response
