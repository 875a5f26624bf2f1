import pytest

from router.core.cadence import GAP_S, brings_content, count_gaps


@pytest.mark.parametrize(
    ("event", "content"),
    [
        (b'{"delta":{"role":"assistant","content":""}}', False),
        (b'{"delta":{"role":"assistant","content":null,"tool_calls":[]}}', False),
        (b'{"delta":{},"finish_reason":"stop"}', False),
        (b'{"choices":[],"usage":{"completion_tokens":3}}', False),
        (b'{"choices":[{"text":""}]}', False),
        (b'{"delta":{"content":"a"}}', True),
        (b'{"delta": {"content": "a"}}', True),
        (b'{"choices":[{"text":" "}]}', True),
        (b'{"delta":{"reasoning_content":"hm"}}', True),
        (b'{"delta":{"reasoning":"hm"}}', True),
        (b'{"delta":{"refusal":"no"}}', True),
        (b'{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}', True),
        (rb'{"delta":{"role":"assistant","content":"\""}}', True),
        (rb'{"delta":{"name":"\"content\":\"x\"","content":""}}', False),
    ],
)
def test_content_is_what_was_generated(event, content):
    assert brings_content(b"data: " + event + b"\n\n") is content


def test_three_speeds_fall_into_three_buckets():
    counts = [0] * (len(GAP_S) + 1)
    count_gaps([1.0, 1.0056, 1.0126, 1.023, 9.0], counts)
    hit = [number for number, count in enumerate(counts) if count]
    assert len(hit) == 4 and sum(counts) == 4
    assert GAP_S[hit[0]] == 0.006 and GAP_S[hit[1]] in (0.007, 0.008) and GAP_S[hit[2]] == 0.0115
    assert hit[3] == len(GAP_S), "above the last bound"
