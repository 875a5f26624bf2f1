import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.bench.sse import EventSplitter, read_answer

STREAM = (
    b": hello\n\ndata: one\n\ndata:two\n\nevent: x\ndata: three\nid: 4\n\n"
    b"data: a\ndata: b\n\nretry: 5\n\r\ndata: cr\r\n\r\n"
)
PAYLOADS = [b"one", b"two", b"three", b"a\nb", b"cr"]


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=30))
def test_events_do_not_depend_on_how_the_stream_is_cut(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    splitter = EventSplitter()
    payloads = [p for a, b in itertools.pairwise(edges) for p in splitter.feed(STREAM[a:b])]
    assert payloads == PAYLOADS
    assert splitter.rest == b""


def test_an_incomplete_event_is_kept_as_rest():
    splitter = EventSplitter()
    assert splitter.feed(b"data: x\n") == []
    assert splitter.rest == b"data: x\n"
    assert splitter.feed(b"\n") == [b"x"]


@pytest.mark.parametrize(
    ("payload", "shows"),
    [
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"content":"a"},"unknown":1}],"id":"x"}', True),
        (b'{"choices":[{"delta":{"content":null,"reasoning_content":"a"}}]}', True),
        (b'{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}', True),
        (b'{"choices":[{"text":""}]}', False),
        (b'{"choices":[{"text":"a"}]}', True),
        (b'{"choices":[{"message":{"content":"a"}}]}', True),
        (b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}', False),
    ],
)
def test_what_counts_as_output(payload, shows):
    assert read_answer(payload).has_output is shows


def test_usage_and_error_are_read():
    answer = read_answer(b'{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}')
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
    assert read_answer(b'{"error":{"code":"no_pair","type":"server_error"}}').error.name == "no_pair"
    assert read_answer(b'{"error":{"code":null,"type":"server_error"}}').error.name == "server_error"
    assert read_answer(b'{"error":{"code":400}}').error.name == "400"
    assert read_answer(b'{"error":{}}').error.name == "error"


@pytest.mark.parametrize("payload", [b"", b"[DONE]", b"{", b"[]", b'{"choices":1}'])
def test_what_is_no_answer_is_none(payload):
    assert read_answer(payload) is None
