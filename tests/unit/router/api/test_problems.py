import json

import pytest

from router.api.problems import envelope, problem_headers, status_line
from router.contract.errors import (
    BadRequest,
    Draining,
    MethodNotAllowed,
    NoPrefill,
    QuotaExceeded,
    StoreDown,
    Unauthorized,
)


def test_the_envelope_is_openais():
    error = BadRequest('Say "hi".', param="messages")
    assert json.loads(envelope(error)) == {
        "error": {
            "message": 'Say "hi".',
            "type": "invalid_request_error",
            "param": "messages",
            "code": "bad_request",
        }
    }
    assert json.loads(envelope(BadRequest("x")))["error"]["param"] is None


@pytest.mark.parametrize("kind", [Draining, NoPrefill, StoreDown, QuotaExceeded])
def test_what_may_pass_later_says_when(kind):
    assert dict(problem_headers(kind("x.")))[b"retry-after"] == b"1"


def test_other_statuses_bring_what_they_need():
    assert problem_headers(BadRequest("x")) == [(b"content-type", b"application/json")]
    assert dict(problem_headers(Unauthorized("x")))[b"www-authenticate"] == b"Bearer"
    assert dict(problem_headers(MethodNotAllowed("x", param="POST")))[b"allow"] == b"POST"
    assert b"allow" not in dict(problem_headers(MethodNotAllowed("x")))


def test_status_lines_have_their_phrase():
    assert status_line(200) == b"HTTP/1.1 200 OK\r\n"
    assert status_line(599) == b"HTTP/1.1 599 \r\n"
