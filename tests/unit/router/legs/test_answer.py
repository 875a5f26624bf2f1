import json

import pytest

from router.contract.errors import Blame
from router.legs.answer import Mark, client_headers, is_stream, judge, judge_event, stream_headers

JSON = [(b"content-type", b"application/json"), (b"date", b"now")]


def envelope(code: object) -> bytes:
    return json.dumps({"error": {"message": "x", "type": "server_error", "param": None, "code": code}}).encode()


def test_headers_of_the_connection_and_of_ours_do_not_pass():
    given = [
        (b"content-type", b"text/plain"),
        (b"connection", b"Keep-Alive, X-A"),
        (b"keep-alive", b"timeout=5"),
        (b"x-a", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"3"),
        (b"server", b"s"),
        (b"date", b"d"),
        (b"x-request-id", b"theirs"),
        (b"retry-after", b"1"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]
    assert client_headers(given) == [
        (b"content-type", b"text/plain"),
        (b"retry-after", b"1"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]


def test_a_stream_is_marked_unless_the_engine_has():
    kept = stream_headers([(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")])
    assert dict(kept) == {
        b"content-type": b"text/event-stream",
        b"cache-control": b"no-store",
        b"x-accel-buffering": b"no",
    }


def test_a_stream_is_told_by_its_content_type():
    assert is_stream([(b"content-type", b"text/event-stream; charset=utf-8")])
    assert not is_stream(JSON)
    assert not is_stream([])


@pytest.mark.parametrize("status", [400, 404, 405, 409, 413, 422])
@pytest.mark.parametrize("body", [envelope("bad"), envelope(400), b"{}", b"", b"\xff"])
def test_4xx_is_the_answer_and_final(status, body):
    verdict = judge(Blame.DECODE, status, JSON, body)
    assert (verdict.answer.status, verdict.answer.body) == (status, body)
    assert verdict.answer.headers == [(b"content-type", b"application/json")]
    assert not verdict.retryable
    assert verdict.error.code == ("bad" if body == envelope("bad") else f"engine_{status}")


@pytest.mark.parametrize("status", [401, 403, 407])
def test_a_key_that_an_engine_does_not_take_is_no_clients_fault(status):
    verdict = judge(Blame.PREFILL, status, [*JSON, (b"www-authenticate", b"Bearer")], envelope("invalid_api_key"))
    error = verdict.error
    assert (error.http_status, error.code, error.blame) == (502, "engine_unauthorized", Blame.DEPLOYMENT)
    assert (verdict.answer, verdict.retryable, verdict.blamed) == (None, True, Blame.PREFILL)
    assert verdict.mark is Mark.INSTANCE


@pytest.mark.parametrize(
    ("data", "status", "code", "retryable", "mark"),
    [
        (envelope("engine_down"), 503, "engine_down", True, Mark.INSTANCE),
        (envelope("kv_wait_timeout"), 504, "kv_wait_timeout", True, Mark.PAIR),
        (envelope("context_length_exceeded"), 400, "context_length_exceeded", False, Mark.NONE),
        (envelope(400), 400, "engine_400", False, Mark.NONE),
        (b'{"object":"error","message":"old style","code":422}', 422, "engine_422", False, Mark.NONE),
        (envelope(500), None, "engine_error", True, Mark.INSTANCE),
        (envelope("their_own"), None, "their_own", True, Mark.INSTANCE),
        (b'{"error":"boom"}', None, "engine_error", True, Mark.INSTANCE),
        (b'{"error":' + b"[" * 100_000, None, "engine_error", True, Mark.INSTANCE),
    ],
)
def test_an_error_as_the_first_event_is_judged_like_an_answer(data, status, code, retryable, mark):
    verdict = judge_event(Blame.DECODE, data)
    assert (verdict.answer and verdict.answer.status) == status
    assert (verdict.error.code, verdict.retryable, verdict.mark) == (code, retryable, mark)
    if status is None:
        assert verdict.error.http_status == 502
    else:
        assert (verdict.answer.headers, verdict.answer.body) == ([(b"content-type", b"application/json")], data)


def test_429_may_pass_elsewhere():
    verdict = judge(Blame.PREFILL, 429, JSON, b"{}")
    assert verdict.retryable and verdict.answer.status == 429 and verdict.blamed is Blame.PREFILL


@pytest.mark.parametrize(
    ("status", "body", "passes", "retryable", "blamed", "code"),
    [
        (503, envelope("no_seats"), True, True, Blame.DECODE, "no_seats"),
        (503, envelope("draining"), True, True, Blame.DECODE, "draining"),
        (503, envelope("their_own"), True, True, Blame.DECODE, "their_own"),
        (503, envelope(503), True, True, Blame.DECODE, "engine_error"),
        (503, b"busy", False, True, Blame.DECODE, "engine_error"),
        (504, envelope("kv_wait_timeout"), True, True, Blame.PREFILL, "kv_wait_timeout"),
        (504, envelope("registration_timeout"), True, True, Blame.DECODE, "registration_timeout"),
        (502, envelope("peer_gone"), True, True, Blame.PREFILL, "peer_gone"),
        (500, envelope("layout_mismatch"), True, False, Blame.PREFILL, "layout_mismatch"),
        (504, envelope("deadline_passed"), True, False, Blame.DECODE, "deadline_passed"),
        (500, envelope("their_own"), False, False, Blame.DECODE, "their_own"),
        (500, b"<html>", False, False, Blame.DECODE, "engine_error"),
        (502, b"", False, True, Blame.DECODE, "engine_error"),
        (301, b"", False, False, Blame.DECODE, "engine_error"),
    ],
)
def test_other_failures_pass_only_when_they_say_something(status, body, passes, retryable, blamed, code):
    verdict = judge(Blame.DECODE, status, JSON, body)
    assert (verdict.answer is not None) is passes
    assert (verdict.retryable, verdict.blamed, verdict.error.code) == (retryable, blamed, code)
    assert verdict.error.http_status == 502


def test_a_body_that_is_nested_too_deeply_is_no_envelope():
    assert judge(Blame.DECODE, 500, JSON, b'{"error":' + b"[" * 100_000).error.code == "engine_error"


@pytest.mark.parametrize(
    ("status", "headers", "body", "mark", "rest_s"),
    [
        (400, JSON, b"", Mark.NONE, 0.0),
        (404, JSON, envelope("engine_down"), Mark.NONE, 0.0),
        (429, JSON, b"", Mark.BUSY, 1.0),
        (429, [(b"retry-after", b"7")], b"", Mark.BUSY, 7.0),
        (500, JSON, b"", Mark.NONE, 0.0),
        (500, [(b"retry-after", b"7")], envelope("mock"), Mark.NONE, 0.0),
        (502, JSON, b"", Mark.INSTANCE, 0.0),
        (503, JSON, b"", Mark.INSTANCE, 0.0),
        (503, [(b"retry-after", b"2")], b"", Mark.BUSY, 2.0),
        (503, [(b"retry-after", b"soon")], b"", Mark.BUSY, 1.0),
        (504, JSON, b"", Mark.INSTANCE, 0.0),
        (503, [(b"retry-after", b"1")], envelope("engine_down"), Mark.INSTANCE, 0.0),
        (503, [(b"retry-after", b"1")], envelope("draining"), Mark.BUSY, 1.0),
        (503, JSON, envelope("no_seats"), Mark.NONE, 0.0),
        (504, JSON, envelope("deadline_passed"), Mark.NONE, 0.0),
        (504, JSON, envelope("kv_wait_timeout"), Mark.PAIR, 0.0),
        (504, JSON, envelope("registration_timeout"), Mark.BUSY, 1.0),
        (502, JSON, envelope("handshake_failed"), Mark.PAIR, 0.0),
        (502, JSON, envelope("stale_attempt"), Mark.NONE, 0.0),
    ],
)
def test_what_a_status_says_about_the_instance(status, headers, body, mark, rest_s):
    verdict = judge(Blame.DECODE, status, headers, body)
    assert (verdict.mark, verdict.rest_s) == (mark, rest_s)
