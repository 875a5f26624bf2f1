from __future__ import annotations

import json

import pytest

from engine_shim.engine.port import FinishReason, SamplingParams, TokensOut
from engine_shim.serve.answer import Head, ids_of, text_of
from engine_shim.serve.chat import ChatAnswer
from engine_shim.serve.completions import CompletionAnswer
from engine_shim.serve.intake import Endpoint, Intake, Prompt, Wishes

OUTPUTS = [
    TokensOut("s", (72,), "H", num_cached_tokens=1),
    TokensOut("s", (105,), "i", finish_reason=FinishReason.LENGTH),
]


def answer_of(tokenizer, kind, **wishes):
    endpoint = Endpoint.CHAT if kind is ChatAnswer else Endpoint.COMPLETION
    intake = Intake(endpoint, "r", (Prompt((1, 2), None),), 1, SamplingParams(5), Wishes(**wishes), None, 1.0)
    return kind(intake, Head("id-1", 17, "m"), tokenizer)


def payloads(raw):
    return [json.loads(line.removeprefix("data: ")) for line in raw.decode().split("\n\n") if line]


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
def test_without_a_wish_for_usage_events_have_none(tokenizer, kind):
    answer = answer_of(tokenizer, kind, stream=True)
    assert all("usage" not in event for event in payloads(answer.events(0, OUTPUTS[0])))
    assert answer.tail() == b"data: [DONE]\n\n"


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
def test_usage_comes_in_an_event_of_its_own_and_is_null_before(tokenizer, kind):
    answer = answer_of(tokenizer, kind, stream=True, include_usage=True)
    events = [event for output in OUTPUTS for event in payloads(answer.events(0, output))]
    assert all(event["usage"] is None for event in events)
    usage, done = answer.tail().decode().removesuffix("\n\n").split("\n\n")
    assert json.loads(usage.removeprefix("data: ")) | {"object": None} == {
        "id": "id-1",
        "object": None,
        "created": 17,
        "model": "m",
        "choices": [],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
    assert done == "data: [DONE]"


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
def test_usage_may_come_with_every_event(tokenizer, kind):
    answer = answer_of(tokenizer, kind, stream=True, continuous_usage=True)
    events = [payloads(answer.events(0, output))[-1] for output in OUTPUTS]
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2]


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
def test_a_prefill_leg_answers_with_its_parameters(tokenizer, kind):
    whole = json.loads(answer_of(tokenizer, kind).whole([OUTPUTS], {"remote_port": 1}))
    assert whole["kv_transfer_params"] == {"remote_port": 1}
    assert "kv_transfer_params" not in json.loads(answer_of(tokenizer, kind).whole([OUTPUTS], None))


def test_texts_and_ids_join():
    assert text_of(OUTPUTS) == "Hi"
    assert ids_of(OUTPUTS) == [72, 105]
