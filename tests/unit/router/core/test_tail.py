import pytest

from router.core.tail import KEPT_BYTES, Tail, completion_tokens, ended_well, tells_error


def test_the_end_is_kept_whatever_has_gone_by():
    tail = Tail()
    whole = b""
    for number in range(5000):
        piece = b"data: %d\n\n" % number
        tail.feed(piece)
        whole += piece
    kept = tail.read()
    assert whole.endswith(kept)
    assert KEPT_BYTES <= len(kept) <= 2 * KEPT_BYTES
    assert tail.num_events == 5000


def test_a_short_body_is_kept_whole():
    tail = Tail()
    tail.feed(b"a")
    tail.feed(b"b")
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
        (b'{"error_count":0}', False),
    ],
)
def test_an_engines_own_failure_is_seen(end, error):
    assert tells_error(end) is error


@pytest.mark.parametrize(
    ("end", "tokens"),
    [
        (b'"usage":{"prompt_tokens":3,"completion_tokens":12,"total_tokens":15}', 12),
        (b'"completion_tokens":1} ... "completion_tokens": 7}', 7),
        (b"", 0),
        (b'"completion_tokens":null', 0),
    ],
)
def test_tokens_are_read_from_the_newest_usage(end, tokens):
    assert completion_tokens(end) == tokens
