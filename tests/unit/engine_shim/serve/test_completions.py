from __future__ import annotations

import json

from engine_shim.engine.port import FinishReason, SamplingParams, TokenLogprob, TokensOut
from engine_shim.serve.answer import Head
from engine_shim.serve.completions import CompletionAnswer
from engine_shim.serve.intake import Endpoint, Intake, Prompt, Wishes

FIRST = TokensOut(
    "s", (72,), "H", (TokenLogprob(72, -0.5, ((73, -0.25),)),), prompt_logprobs=(None, TokenLogprob(66, -2.0))
)
LAST = TokensOut("s", (105,), "i", (TokenLogprob(105, -1.0),), FinishReason.LENGTH)


AB = (Prompt((65, 66), None),)


def answer_of(tokenizer, prompts=AB, n=1, **wishes):
    intake = Intake(Endpoint.COMPLETION, "r", prompts, n, SamplingParams(5), Wishes(**wishes), None, 1.0)
    return CompletionAnswer(intake, Head("cmpl-r", 17, "m"), tokenizer)


def event(raw):
    return json.loads(raw.removeprefix(b"data: "))


def test_a_whole_answer(tokenizer):
    assert json.loads(answer_of(tokenizer).whole([[FIRST, LAST]], None)) == {
        "id": "cmpl-r",
        "object": "text_completion",
        "created": 17,
        "model": "m",
        "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_an_event(tokenizer):
    assert event(answer_of(tokenizer).events(0, LAST)) == {
        "id": "cmpl-r",
        "object": "text_completion",
        "created": 17,
        "model": "m",
        "choices": [{"index": 0, "text": "i", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
    }


def test_logprobs_run_on_over_the_events(tokenizer):
    answer = answer_of(tokenizer, logprobs=1)
    assert event(answer.events(0, FIRST))["choices"][0]["logprobs"] == {
        "text_offset": [0],
        "token_logprobs": [-0.5],
        "tokens": ["H"],
        "top_logprobs": [{"I": -0.25, "H": -0.5}],
    }
    assert event(answer.events(0, LAST))["choices"][0]["logprobs"]["text_offset"] == [1]


def test_an_echoed_prompt_comes_first_in_every_choice(tokenizer):
    prompts = (Prompt((65, 66), None), Prompt((67,), "<C>"))
    answer = answer_of(tokenizer, prompts, n=2, echo=True)
    whole = json.loads(answer.whole([[FIRST, LAST]] * 4, None))
    assert [choice["text"] for choice in whole["choices"]] == ["ABHi", "ABHi", "<C>Hi", "<C>Hi"]
    streamed = answer_of(tokenizer, echo=True)
    assert [event(streamed.events(0, each))["choices"][0]["text"] for each in (FIRST, LAST)] == ["ABH", "i"]


def test_an_echoed_prompt_has_logprobs_and_shifts_the_offsets(tokenizer):
    whole = json.loads(answer_of(tokenizer, echo=True, logprobs=0).whole([[FIRST, LAST]], None))
    assert whole["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2, 3],
        "token_logprobs": [None, -2.0, -0.5, -1.0],
        "tokens": ["A", "B", "H", "i"],
        "top_logprobs": [None, {"B": -2.0}, {"I": -0.25, "H": -0.5}, {"i": -1.0}],
    }


def test_token_ids_and_prompt_logprobs_lie_in_the_choice(tokenizer):
    whole = json.loads(answer_of(tokenizer, token_ids=True, prompt_logprobs=True).whole([[FIRST, LAST]], None))
    choice = whole["choices"][0]
    assert choice["token_ids"] == [72, 105]
    assert choice["prompt_token_ids"] == [65, 66]
    assert choice["prompt_logprobs"] == [None, {"66": {"logprob": -2.0, "rank": None, "decoded_token": "B"}}]
    answer = answer_of(tokenizer, token_ids=True)
    assert event(answer.events(0, FIRST))["choices"][0]["prompt_token_ids"] == [65, 66]
    assert "prompt_token_ids" not in event(answer.events(0, LAST))["choices"][0]
