import pytest

from router.core.opening import first_event, payload_of, tells_failure

TOKEN = b'data: {"id":"c","choices":[{"index":0,"text":"a"}]}'
ERROR = b'{"error":{"message":"boom","code":500}}'


@pytest.mark.parametrize(
    ("held", "event"),
    [
        (TOKEN + b"\n\n", TOKEN),
        (TOKEN + b"\r\n\r\n", TOKEN),
        (TOKEN + b"\n\ndata: [DONE]\n\n", TOKEN),
        (TOKEN, None),
        (TOKEN + b"\r\n", None),
        (b": keep-alive\n\n", None),
        (b"\n\n\n", None),
        (b": data: no\n\nretry: 5\n\n", None),
        (b"\n: keep-alive\n\n" + TOKEN + b"\n\n", b"" + TOKEN),
        (b"id: 1\nevent: x\ndata:y\n\n", b"id: 1\nevent: x\ndata:y"),
    ],
)
def test_the_first_event_is_the_first_with_data_that_is_whole(held, event):
    assert first_event(held) == event


def test_data_may_have_several_lines():
    assert payload_of(b'event: x\ndata: {"a":\r\ndata:1}') == b'{"a":\n1}'
    assert payload_of(b": data: no") == b""


@pytest.mark.parametrize(
    ("event", "failed"),
    [
        (b"data: " + ERROR, True),
        (b"data:" + ERROR, True),
        (b'data: {"object":"error","message":"old style","code":400}', True),
        (b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}', True),
        (b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"x"}}}', True),
        (b'data: {"choices":[{"delta":{},"finish_reason":"error"}]}', True),
        (b'data: {"choices":[{"index":0,"text":"","finish_reason": null},{"index":1,"finish_reason": "error"}]}', True),
        (b'data: {"choices":[{"text":"\\"finish_reason\\": \\"error\\"","finish_reason":"stop"}],"x":"error"}', False),
        (b'data: {"choices":{"finish_reason":"error"}}', False),
        (b'data: {"error":null,"choices":[]}', False),
        (b'data: {"choices":[{"text":"\\"error\\""}],"id":"error"}', False),
        (b'data: "error"', False),
        (TOKEN, False),
        (b"data: [DONE]", False),
        (b"", False),
    ],
)
def test_what_is_an_engines_own_error(event, failed):
    assert tells_failure(event) is failed
