from __future__ import annotations

import json

import pytest

from engine_shim.serve.intake import Endpoint, Prompt
from engine_shim.serve.openai_request import RequestReader
from engine_shim.serve.prompts import PromptReader
from router.contract.errors import BadRequest
from router.contract.instance import Mode
from router.contract.wire import DecodeHandoff, PrefillHandoff
from tests.support.fake_driver import FakeDriver

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "t.1"}
DECODE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "transfer_id": "t.1",
    "remote_engine_id": "p@1",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
}


@pytest.fixture
async def read(tokenizer):
    reader = RequestReader(PromptReader(FakeDriver(tokenizer).card, tokenizer), request_for_s=60.0)

    def read(headers=None, endpoint=Endpoint.COMPLETION, **fields):
        body = fields if endpoint is Endpoint.CHAT else {"prompt": "hi", **fields}
        return reader.read(endpoint, json.dumps(body).encode(), headers or {})

    return read


async def test_a_request_is_read_once_and_for_all(read):
    intake = read({"x-request-id": "r-7"}, n=2, best_of=2)
    assert intake.request_id == "r-7"
    assert intake.prompts == (Prompt((104, 105), "hi"),)
    assert intake.n == 2
    assert intake.handoff is None
    assert intake.deadline_for_s == 60.0


async def test_a_chat_is_read_through_the_template(read):
    intake = read(endpoint=Endpoint.CHAT, messages=[{"role": "user", "content": "hi"}])
    assert intake.endpoint is Endpoint.CHAT
    assert intake.prompts[0].text is None


async def test_an_id_is_minted_where_none_is_given(read):
    first, second = read().request_id, read({"x-request-id": ""}).request_id
    assert first != second
    assert len(first) == 32


@pytest.mark.parametrize(("stated", "expected"), [("1500", 1.5), ("60001", 60.0), ("999999999999", 60.0)])
async def test_a_deadline_is_shortened_but_never_lengthened(read, stated, expected):
    assert read({"x-request-deadline-ms": stated}).deadline_for_s == expected


@pytest.mark.parametrize("stated", ["0", "-5", "1.5", "", "soon", "\u0661", "9" * 4500])
async def test_a_deadline_that_is_none_is_refused(read, stated):
    with pytest.raises(BadRequest, match="positive number") as caught:
        read({"x-request-deadline-ms": stated})
    assert caught.value.param == "X-Request-Deadline-Ms"


@pytest.mark.parametrize("stated", ["x" * 129, "a\tb"])
async def test_an_id_that_cannot_be_printed_is_refused(read, stated):
    with pytest.raises(BadRequest, match="printable") as caught:
        read({"x-request-id": stated})
    assert caught.value.param == "X-Request-Id"


async def test_handoffs_are_read(read):
    assert read(kv_transfer_params=PREFILL, max_tokens=1).handoff == PrefillHandoff("t.1")
    assert read(kv_transfer_params=DECODE).handoff == DecodeHandoff("t.1", Mode.PUSH, "p@1", "10.0.0.1", 5600)
    named = {**PREFILL, "transfer_id": None}
    assert read({"x-request-id": "r-7"}, kv_transfer_params=named).handoff == PrefillHandoff("r-7")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"kv_transfer_params": DECODE, "n": 2}, "n"),
        ({"kv_transfer_params": PREFILL, "prompt": ["a", "b"]}, "prompt"),
        ({"kv_transfer_params": PREFILL, "stream": True}, "stream"),
        ({"kv_transfer_params": DECODE, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"kv_transfer_params": DECODE, "echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"kv_transfer_params": {**DECODE, "remote_port": "x"}}, "kv_transfer_params"),
        ({"kv_transfer_params": [1]}, "kv_transfer_params"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"n": 128, "prompt": ["a"] * 9}, "n"),
    ],
)
async def test_what_cannot_be_split_or_is_too_much_is_refused(read, fields, param):
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert caught.value.param == param


async def test_a_decode_leg_may_stream(read):
    assert read(kv_transfer_params=DECODE, stream=True).wishes.stream
    assert read(n=128, prompt=["a"] * 8).num_choices == 1024
