from __future__ import annotations

import pytest

from engine_shim.serve.openai_body import (
    REFUSED_FIELDS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    SamplingBody,
    TokenizeBody,
    decode_body,
)
from router.contract.errors import BadRequest


def test_unknown_fields_are_ignored_and_null_means_not_given():
    body = decode_body(b'{"prompt": "x", "nonsense": [1], "max_tokens": null, "user": "u"}', CompletionBody)
    assert body == CompletionBody(prompt="x")


def test_whole_numbers_are_floats_too():
    assert decode_body(b'{"prompt": "x", "temperature": 1}', CompletionBody).temperature == 1.0


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"nonsense", b'{"prompt": "x"} x', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"\x00"]
)
def test_what_is_no_json_blames_no_field(raw):
    with pytest.raises(BadRequest, match="not acceptable JSON") as caught:
        decode_body(raw, CompletionBody)
    assert caught.value.param is None


def test_json_that_is_nested_too_deeply_is_refused():
    raw = b'{"prompt": "x", "z": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(BadRequest, match="not acceptable JSON"):
        decode_body(raw, CompletionBody)


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"3"])
def test_json_that_is_no_object_blames_no_field(raw):
    with pytest.raises(BadRequest, match="Expected `object`") as caught:
        decode_body(raw, ChatBody)
    assert caught.value.param is None


@pytest.mark.parametrize(
    ("kind", "param"), [(CompletionBody, "prompt"), (ChatBody, "messages"), (DetokenizeBody, "tokens")]
)
def test_a_missing_field_is_named(kind, param):
    with pytest.raises(BadRequest, match=f"{param} is missing") as caught:
        decode_body(b"{}", kind)
    assert caught.value.param == param


def test_nothing_is_needed_to_tokenize_but_one_of_two():
    assert decode_body(b"{}", TokenizeBody) == TokenizeBody()


@pytest.mark.parametrize("name", REFUSED_FIELDS)
def test_a_field_that_the_engine_does_not_have_is_refused(name):
    kind, rest = (ChatBody, b'"messages": [{}]') if name == "chat_template" else (CompletionBody, b'"prompt": "x"')
    with pytest.raises(BadRequest, match="not supported") as caught:
        decode_body(b'{%b, "%b": "x"}' % (rest, name.encode()), kind)
    assert caught.value.param == name
    for nothing in (b"null", b"false", b'""', b"[]"):
        decode_body(b'{%b, "%b": %b}' % (rest, name.encode(), nothing), kind)


def test_every_refused_field_is_one_of_the_bodies():
    known = {*SamplingBody.__struct_fields__, *CompletionBody.__struct_fields__, *ChatBody.__struct_fields__}
    assert set(REFUSED_FIELDS) <= known
