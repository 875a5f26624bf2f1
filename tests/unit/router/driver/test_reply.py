import pytest

from router.contract.errors import LegBroken
from router.core.lifecycle import Edge
from router.driver import reply as module
from router.driver.facts import Facts
from router.driver.reply import Reply
from router.legs.answer import Verdict
from tests.support.clients import KeptClient

SSE = [(b"content-type", b"text/event-stream"), (b"x", b"1")]
JSON = [(b"content-type", b"application/json"), (b"content-length", b"9")]
DONE = b"data: [DONE]\n\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


class Answering:
    def __init__(self, headers, status=200):
        self.headers, self.status = headers, status


def feed(reply, headers, *pieces, status=200):
    """The edges of all pieces; the last one ends the answer."""
    leg = Answering(headers, status)
    edges = []
    for number, piece in enumerate(pieces, 1):
        moved = reply.feed(leg, piece, number == len(pieces), 1.0)
        if isinstance(moved, Verdict):
            return moved
        for edge in moved:
            edges.append(edge)
            {Edge.DECODE_STREAMING: reply.commit, Edge.DECODE_DONE: reply.serve, Edge.DECODE_WHOLE: reply.deliver}[
                edge
            ]()
    return edges


def test_a_stream_goes_through_as_it_comes():
    client = KeptClient()
    reply = Reply(client)
    assert feed(reply, SSE, b"data: 1\n\n", b"data: 2\n\n", DONE) == [Edge.DECODE_STREAMING, Edge.DECODE_DONE]
    assert client.writes == [b"data: 1\n\n", b"data: 2\n\n", DONE]
    status, headers, length = client.head
    assert (status, length) == (200, None)
    assert (b"cache-control", b"no-cache") in headers and (b"x", b"1") in headers
    assert reply.passed.num_events == 3 and reply.tail.endswith(DONE)
    assert client.ended


def test_a_head_alone_commits_nothing():
    client = KeptClient()
    reply = Reply(client)
    assert reply.feed(Answering(SSE), b"", False, 1.0) == ()
    assert client.head is None


def test_a_stream_in_one_read_begins_and_ends():
    client = KeptClient()
    reply = Reply(client)
    assert feed(reply, SSE, b"data: 1\n\n" + DONE) == [Edge.DECODE_STREAMING, Edge.DECODE_DONE]
    assert client.head[2] is None and client.body == b"data: 1\n\n" + DONE
    assert reply.passed.num_events == 2


def test_a_plain_answer_is_delivered_whole():
    client = KeptClient()
    reply = Reply(client)
    assert feed(reply, JSON, b"{}", b"", b"!") == [Edge.DECODE_WHOLE]
    assert (client.answered.status, client.answered.body) == (200, b"{}!")
    assert client.answered.headers == [(b"content-type", b"application/json")]
    assert reply.passed is None and reply.tail == b"{}!"


def test_a_large_plain_answer_begins_before_its_end(monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 5)
    client = KeptClient()
    assert feed(Reply(client), JSON, b"123", b"456", b"789") == [Edge.DECODE_STREAMING, Edge.DECODE_DONE]
    assert client.head[2] == 9 and client.writes == [b"123456", b"789"]


def test_a_large_plain_answer_without_a_length_is_chunked(monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 5)
    client = KeptClient()
    feed(Reply(client), JSON[:1], b"123456", b"")
    assert client.head[2] is None and client.ended


@pytest.mark.parametrize(
    ("headers", "pieces", "sent"),
    [
        (SSE, [b"data: 1\n\n", b""], b"data: 1\n\n"),
        (SSE, [b"data: 1\n\n", b"data: 2\n\n"], b"data: 1\n\ndata: 2\n\n"),
        (SSE, [b"data: 1\n\n"], b""),
        (SSE, [b""], b""),
        (JSON, [b""], b""),
    ],
)
def test_what_ends_without_an_end_is_broken(headers, pieces, sent):
    client = KeptClient()
    verdict = feed(Reply(client), headers, *pieces)
    assert isinstance(verdict.error, LegBroken) and verdict.retryable
    assert client.body == sent and not client.over


def test_an_error_answer_is_judged_when_it_is_whole():
    client = KeptClient()
    reply = Reply(client)
    assert reply.feed(Answering(JSON, 400), b'{"a"', False, 1.0) == ()
    verdict = reply.feed(Answering(JSON, 400), b":1}", True, 1.0)
    assert verdict.answer.body == b'{"a":1}' and verdict.answer.status == 400
    assert client.head is None and not client.over


def test_an_endless_error_answer_is_broken(monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 5)
    assert isinstance(feed(Reply(KeptClient()), JSON, b"123456", b"", status=400), Verdict)


def test_a_chunk_that_passes_by_counts_like_one_that_is_fed():
    client, facts = KeptClient(takes_chunks=True), Facts()
    reply, leg = Reply(client), Answering(SSE)
    assert reply.chunk_taker(facts) is None, "nothing has begun"
    reply.feed(leg, TOKEN, False, 1.0)
    reply.commit()
    framed = b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN)
    reply.chunk_taker(facts)(framed, framed.index(TOKEN))
    assert client.chunks == [framed] and client.writes == [TOKEN]
    assert facts.last_byte_at > 0
    assert reply.feed(leg, DONE, True, 2.0) == (Edge.DECODE_DONE,)
    assert reply.tail == TOKEN * 2 + DONE and reply.passed.num_events == 3


def test_a_client_that_takes_no_chunks_is_fed():
    reply = Reply(KeptClient())
    reply.feed(Answering(SSE), TOKEN, False, 1.0)
    reply.commit()
    assert reply.chunk_taker(Facts()) is None


@pytest.mark.parametrize(
    "pieces",
    [[b": keep-alive\n\n"], [b"\n"], [b"\r\n", b": x\r\n\r\n"], [b'data: {"choices":', b"[]}"], [b"retry: 9\n\n"]],
)
def test_nothing_is_said_before_the_first_event(pieces):
    client = KeptClient()
    reply, leg = Reply(client), Answering(SSE)
    assert [reply.feed(leg, piece, False, 1.0) for piece in pieces] == [()] * len(pieces)
    assert client.head is None
    assert reply.feed(leg, b"\n\n" + TOKEN, False, 2.0) == (Edge.DECODE_STREAMING,)
    reply.commit()
    assert client.body == b"".join(pieces) + b"\n\n" + TOKEN


@pytest.mark.parametrize("before", [b"", b": keep-alive\n\n"])
@pytest.mark.parametrize("after", [b"", b"data: [DONE]\n\n"])
@pytest.mark.parametrize("size", [7, 10**9])
def test_an_error_as_the_first_event_is_no_answer(before, after, size):
    client = KeptClient()
    raw = before + b'data: {"error":{"message":"boom","code":"engine_down"}}\n\n' + after
    verdict = feed(Reply(client), SSE, *(raw[start : start + size] for start in range(0, len(raw), size)))
    assert (verdict.error.code, verdict.retryable, verdict.answer.status) == ("engine_down", True, 503)
    assert client.head is None and not client.over


def test_a_first_event_that_ends_in_error_is_no_answer():
    client = KeptClient()
    event = b'data: {"choices":[{"index":0,"text":"","finish_reason":"error"}]}\n\n'
    for pieces in ([event], [event + DONE, b""], [b": x\n\n" + event[:20], event[20:]]):
        verdict = feed(Reply(client), SSE, *pieces)
        assert (verdict.error.http_status, verdict.retryable, verdict.answer) == (502, True, None)
    assert client.head is None and not client.over
    begun = [Edge.DECODE_STREAMING, Edge.DECODE_DONE]
    assert feed(Reply(client), SSE, TOKEN, event, DONE, b"") == begun, "what has begun passes"


def test_an_error_after_the_first_event_passes():
    client = KeptClient()
    error = b'data: {"error":{"message":"boom","code":"engine_down"}}\n\n'
    assert feed(Reply(client), SSE, TOKEN + error, b"") == [Edge.DECODE_STREAMING, Edge.DECODE_DONE]
    assert client.body == TOKEN + error


@pytest.mark.parametrize("pieces", [[DONE], [DONE, b""], [b": x\n\n" + DONE]])
def test_a_stream_that_is_only_done_has_answered_nothing(pieces):
    client = KeptClient()
    verdict = feed(Reply(client), SSE, *pieces)
    assert isinstance(verdict.error, LegBroken) and "answered nothing" in verdict.error.message
    assert client.head is None


def test_endless_comments_begin_the_stream(monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 5)
    assert Reply(KeptClient()).feed(Answering(SSE), b": xxx\n\n", False, 1.0) == (Edge.DECODE_STREAMING,)


def test_a_stream_that_cannot_be_read_begins_with_its_first_byte():
    reply = Reply(KeptClient())
    assert reply.feed(Answering([*SSE, (b"content-encoding", b"gzip")]), b"\n", False, 1.0) == (Edge.DECODE_STREAMING,)
