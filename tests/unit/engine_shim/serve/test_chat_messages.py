from __future__ import annotations

import pytest

from engine_shim.serve.chat_messages import template_messages
from router.contract.errors import BadRequest


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"type": "input_text", "text": "b"}], "a\nb"),
    ],
)
def test_content_becomes_text(content, text):
    assert template_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": text}]


def test_absent_content_is_empty_and_other_fields_stay():
    assert template_messages([{"role": "tool", "tool_call_id": "c1", "name": None}]) == [
        {"role": "tool", "tool_call_id": "c1", "content": ""}
    ]


def test_arguments_of_tool_calls_become_objects():
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}]
    (message,) = template_messages([{"role": "assistant", "tool_calls": calls}])
    assert message["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}
    ]
    assert calls[0]["function"]["arguments"] == '{"x": [1]}'


@pytest.mark.parametrize(("arguments", "expected"), [("", {}), ({"x": 1}, {"x": 1})])
def test_arguments_may_be_empty_or_objects_already(arguments, expected):
    (message,) = template_messages([{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}])
    assert message["tool_calls"] == [{"function": {"arguments": expected}}]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"content": "x"}, r"messages\[0\]\.role"),
        ({"role": 3, "content": "x"}, r"messages\[0\]\.role"),
        ({"role": "", "content": "x"}, r"messages\[0\]\.role"),
        ({"role": "user", "content": 3}, "must be a string or a list"),
        ({"role": "user", "content": {"type": "text"}}, "must be a string or a list"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "not text"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "not text"),
        ({"role": "user", "content": [3]}, "not text"),
        ({"role": "assistant", "tool_calls": "x"}, "list of objects"),
        ({"role": "assistant", "tool_calls": [3]}, "list of objects"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}, "not JSON"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 9000}}]}, "too deeply"),
    ],
)
def test_what_no_template_can_read_is_a_bad_request(message, complaint):
    with pytest.raises(BadRequest, match=complaint) as caught:
        template_messages([message])
    assert caught.value.param == "messages"
