import json

import msgspec
import pytest

from router.api.intake import read_intake
from router.contract.errors import BadRequest
from router.core.intake import Endpoint


def read(body, **fields):
    raw = body if isinstance(body, bytes) else json.dumps(body | fields).encode()
    return read_intake(Endpoint.COMPLETIONS, raw)


def test_the_body_stays_as_it_is():
    raw = b'{ "model" : "m", "x":1.0 }\n'
    intake = read_intake(Endpoint.CHAT, raw, b"traceparent: t\r\n", "mine")
    assert (intake.endpoint, intake.body, intake.model) == (Endpoint.CHAT, raw, "m")
    assert (intake.trace, intake.client_id, intake.whole) == (b"traceparent: t\r\n", "mine", "")


@pytest.mark.parametrize(
    ("value", "stream"), [(True, True), (False, False), (None, False), ("true", False), (1, False), ([], False)]
)
def test_only_true_is_a_stream(value, stream):
    assert read({"model": "m", "stream": value}).stream is stream
    assert read({"model": "m"}).stream is False


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({}, ""),
        ({"n": 1}, ""),
        ({"n": None}, ""),
        ({"n": 2}, "n"),
        ({"n": "2"}, "n"),
        ({"best_of": 1}, ""),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": False}, ""),
        ({"use_beam_search": True}, "beam_search"),
        ({"prompt_logprobs": None}, ""),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"echo": True}, ""),
        ({"echo": True, "logprobs": None}, ""),
        ({"echo": True, "logprobs": 0}, "echo_logprobs"),
        ({"echo": False, "logprobs": 1}, ""),
        ({"logprobs": True}, ""),
        ({"prompt": "a"}, ""),
        ({"prompt": []}, ""),
        ({"prompt": ["a"]}, ""),
        ({"prompt": [1, 2, 3]}, ""),
        ({"prompt": [[1, 2]]}, ""),
        ({"prompt": ["a", "b"]}, "several_prompts"),
        ({"prompt": [[1], [2]]}, "several_prompts"),
        ({"prompt": {"a": 1}}, ""),
    ],
)
def test_why_a_request_stays_whole(fields, whole):
    assert read({"model": "m"}, **fields).whole == whole


def test_spaces_do_not_hide_several_prompts():
    assert read(b'{"model":"m","prompt": [ \n "a" , "b" ]}').whole == "several_prompts"


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params", "request_id", "kv_tran\\u0073fer_params"])
def test_fields_of_ours_are_taken_out(name):
    intake = read(b'{"model":"m","%b":{"a":1},"x":1.50}' % name.encode())
    assert intake.body == b'{"model":"m","x":1.50}'


def test_fields_of_ours_are_taken_out_of_vllms_own_bag():
    """vLLM hands its members to the scheduler as it does the fields of these names."""
    body = b'{"model":"m","vllm_xargs":{"a":1.50,"kv_transfer_params":"x","ec_transfer_params":["y"]}}'
    assert read(body).body == b'{"model":"m","vllm_xargs":{"a":1.50}}'
    for other in (b"null", b'"kv_transfer_params"', b'["kv_transfer_params"]'):
        assert read(b'{"model":"m","vllm_xargs":%b}' % other).body == b'{"model":"m","vllm_xargs":%b}' % other


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"null", None),
        (b"[1]", None),
        (b'{"model":"m"', None),
        (b'{"model":"m"}}', None),
        (b'{"model":"m","a":Infinity}', None),
        (b'{"model":"\xff"}', None),
        (b'{"a":' + b"[" * 100_000, None),
        (b'{"a":' + b'{"a":' * 100_000, None),
        (b"{}", "model"),
        (b'{"model":null}', "model"),
        (b'{"model":["m"]}', "model"),
        (b'{"model":""}', "model"),
    ],
)
def test_what_is_no_request_is_refused(body, param):
    with pytest.raises(BadRequest) as refused:
        read(body)
    assert refused.value.param == param
    assert refused.value.message.endswith(".")


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({}, b""),
        ({"user": "u"}, b'"u"'),
        ({"user": "u", "prompt_cache_key": "k"}, b'"k"'),
        ({"user": "u", "prompt_cache_key": "k", "session_id": 7}, b"7"),
        ({"user": "u", "session_id": "s"}, b'"s"'),
        ({"user": None}, b"null"),
    ],
)
def test_the_most_exact_name_of_the_session_counts(fields, session):
    assert bytes(read({"model": "m"}, **fields).session) == session


def test_the_prompt_is_known_as_it_was_sent():
    assert bytes(read(b'{"model":"m","prompt":"a\\u00e9" }').prompt) == b'"a\\u00e9"'
    assert bytes(read(b'{"messages": [{"role":"user"}],"model":"m"}').prompt) == b'[{"role":"user"}]'
    assert bytes(read({"model": "m"}).prompt) == b""


@pytest.mark.parametrize(
    ("endpoint", "fields", "previous"),
    [
        (Endpoint.RESPONSES, {"previous_response_id": "resp_1"}, b'"resp_1"'),
        (Endpoint.RESPONSES, {"previous_response_id": None}, b""),
        (Endpoint.RESPONSES, {}, b""),
        (Endpoint.CHAT, {"previous_response_id": "resp_1"}, b""),
    ],
)
def test_what_a_response_goes_on_from_is_known(endpoint, fields, previous):
    made = read_intake(endpoint, msgspec.json.encode({"model": "m", "input": "x"} | fields))
    assert bytes(made.previous) == previous


def test_other_endpoints_are_never_split_and_tokenizers_need_no_model():
    made = read_intake(Endpoint.EMBEDDINGS, b'{"model":"m","input":["a","b"]}')
    assert (made.whole, made.model) == ("/v1/embeddings", "m")
    assert read_intake(Endpoint.TOKENIZE, b'{"prompt":"hi"}').model == ""
    with pytest.raises(BadRequest):
        read_intake(Endpoint.EMBEDDINGS, b'{"input":"a"}')


@pytest.mark.parametrize(
    "body", [b'{"model":"m","x":"\xff"}', b'{"model":"m","\xff":1}', b'{"model":"m","x":{"a":"\xc3"}}']
)
def test_bytes_that_are_no_utf8_are_refused_wherever_they_stand(body):
    with pytest.raises(BadRequest, match="not valid JSON"):
        read_intake(Endpoint.CHAT, body)
