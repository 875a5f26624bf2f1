import pytest

from router.core.cadence import GAP_S
from router.core.tail import KEPT_BYTES, Tail, ended_well, tells_error, usage_of


def test_the_end_is_kept_whatever_has_gone_by():
    tail = Tail()
    whole = b""
    for number in range(5000):
        piece = b"data: %d\n\n" % number
        tail.feed(piece, 0.0)
        whole += piece
    kept = tail.read()
    assert whole.endswith(kept)
    assert KEPT_BYTES <= len(kept) <= 2 * KEPT_BYTES
    assert tail.num_events == 5000


def test_a_short_body_is_kept_whole():
    tail = Tail()
    tail.feed(b"a", 0.0)
    tail.feed(b"b", 0.0)
    assert tail.read() == b"ab"


@pytest.mark.parametrize(
    ("end", "well"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\n\n", True),
        (b'data: {"choices":[{"finish_reason":"stop"}]}\n\n', True),
        (b'data: {"choices":[{"finish_reason": "length"}]}\n\n', True),
        (b'data: {"error":{"message":"boom"}}\n\n', True),
        (b'data: {"choices":[{"text":"x","finish_reason":null}]}\n\n', False),
        (b'data: {"choices":[{"text":"[DONE] data: [DONE]","finish_reason":null}]}\n\n', False),
        (b'data: {"choices":[{"text":"event: message_stop","finish_reason":null}]}\n\n', False),
        (b'\ndata: {"choices":[]}\r\n\r\ndata: [DONE]\r\n\r\n', True),
        (b'event: response.completed\ndata: {"type":"response.completed"}\n\n', True),
        (b"event: response.incomplete\ndata: {}\n\n", True),
        (b'x\nevent: message_stop\ndata: {"type":"message_stop"}\n\n', True),
        (b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', True),
        (b"event: response.created\ndata: {}\n\n", False),
        (b"", False),
    ],
)
def test_a_stream_ends_well_when_it_says_so(end, well):
    assert ended_well(end) is well


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (b'data: {"error":{}}\n\n', True),
        (b'{"choices":[{"finish_reason":"error"}]}', True),
        (b'{"choices":[{"finish_reason": "error"}]}', True),
        (b'{"choices":[{"text":"an \\"error\\": no","finish_reason":"stop"}]}', False),
        (b'event: error\ndata: {"type":"error","error":{}}\n\n', True),
        (b'x\nevent: response.failed\ndata: {"response":{"error":{}}}\n\n', True),
        (b'data: {"text":"event: error","error":null}\n\n', False),
        (b'{"error_count":0}', False),
    ],
)
def test_an_engines_own_failure_is_seen(end, error):
    assert tells_error(end) is error


@pytest.mark.parametrize(
    ("end", "tokens"),
    [
        (b'"usage":{"prompt_tokens":3,"completion_tokens":12,"total_tokens":15}', (3, 12)),
        (b'"usage": {"completion_tokens": 12, "prompt_tokens": 3}', (3, 12)),
        (b'"usage":{"completion_tokens":1} ... "usage":{"completion_tokens": 7}', (0, 7)),
        (b"", (0, 0)),
        (b'"usage":null', (0, 0)),
        (b'"usage":{"completion_tokens":null,"prompt_tokens":3}', (3, 0)),
        (b'"completion_tokens":3', (0, 0)),
    ],
)
def test_tokens_are_read_from_the_newest_usage(end, tokens):
    assert usage_of(end) == tokens


def gaps_of(tail: Tail) -> list[int]:
    counts = [0] * (len(GAP_S) + 1)
    tail.count_gaps(counts)
    return counts


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


def test_the_first_content_is_not_the_role():
    tail = Tail()
    tail.feed(ROLE, 1.0)
    assert tail.content_at == 0.0
    tail.feed(TOKEN, 2.0)
    tail.feed(TOKEN, 2.5)
    assert (tail.content_at, tail.events_before_content, tail.num_events) == (2.0, 1, 3)
    assert tail.num_bytes == len(ROLE) + 2 * len(TOKEN)


def test_a_mark_that_is_cut_between_two_reads_is_found():
    for cut in range(1, len(TOKEN)):
        tail = Tail()
        tail.feed(ROLE, 1.0)
        tail.feed(TOKEN[:cut], 2.0)
        tail.feed(TOKEN[cut:] + b"\n", 3.0)
        assert tail.content_at in (2.0, 3.0)


@pytest.mark.parametrize("num_tokens", [2, 3, 1000])
def test_every_gap_is_counted_once_however_long_the_stream(num_tokens):
    tail = Tail()
    tail.feed(ROLE, 0.5)
    for number in range(num_tokens):
        tail.feed(TOKEN, 1.0 + number * 0.007)
    gaps = gaps_of(tail)
    assert sum(gaps) == num_tokens - 1
    assert sum(gaps[6:8]) == num_tokens - 1, "7 ms, give or take a rounding"
    assert gaps_of(tail) == gaps, "asking changes nothing"


def test_what_follows_the_last_token_is_no_gap():
    tail = Tail()
    for at, piece in enumerate((ROLE, TOKEN, TOKEN, b'data: {"choices":[],"usage":{}}', b"data: [DONE]", b"")):
        tail.feed(piece, float(at))
    assert sum(gaps_of(tail)) == 1


def test_one_token_has_no_gap():
    tail = Tail()
    assert sum(gaps_of(tail)) == 0
    tail.feed(TOKEN, 1.0)
    assert sum(gaps_of(tail)) == 0


def test_what_is_noted_of_a_long_stream_stays_small():
    tail = Tail()
    for number in range(20_000):
        tail.feed(TOKEN, number * 0.001)
    assert len(tail._moments) < 200
