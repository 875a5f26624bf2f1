from __future__ import annotations

import pytest

from engine_shim.engine.port import SamplingParams
from engine_shim.serve.intake import Wishes
from engine_shim.serve.openai_body import ChatBody, CompletionBody, ResponseFormat, StreamOptions
from engine_shim.serve.sampling import sampling_of, wishes_of
from router.contract.errors import BadRequest, ContextTooLong


def completion(**fields):
    return CompletionBody(prompt="x", **fields)


def chat(**fields):
    return ChatBody(messages=[{"role": "user", "content": "x"}], **fields)


def sampling(body, room_tokens=50):
    return sampling_of(body, wishes_of(body), room_tokens=room_tokens, vocab_size=100)


def test_defaults_are_openais():
    assert sampling(completion()) == SamplingParams(max_tokens=16)
    assert sampling(completion(), room_tokens=3) == SamplingParams(max_tokens=3)
    assert sampling(chat()) == SamplingParams(max_tokens=50)


def test_every_field_reaches_the_engine():
    body = completion(
        max_tokens=9,
        min_tokens=2,
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        seed=-3,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias={"5": -100.0, "99": 1.0},
        stop=["a", "b"],
        stop_token_ids=[4],
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=3,
        prompt_logprobs=0,
    )
    assert sampling(body) == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        seed=-3,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias=((5, -100.0), (99, 1.0)),
        stop=("a", "b"),
        stop_token_ids=(4,),
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=3,
        prompt_logprobs=0,
    )


@pytest.mark.parametrize("top_k", [-1, 0])
def test_top_k_has_two_words_for_off(top_k):
    assert sampling(completion(top_k=top_k)).top_k == 0


def test_a_stop_string_may_stand_alone():
    assert sampling(completion(stop="END")).stop == ("END",)


def test_max_completion_tokens_wins_in_a_chat():
    assert sampling(chat(max_tokens=3, max_completion_tokens=5)).max_tokens == 5


@pytest.mark.parametrize(
    ("body", "param"),
    [(completion(max_tokens=51), "max_tokens"), (chat(max_completion_tokens=51), "max_completion_tokens")],
)
def test_more_tokens_than_there_is_room_for_are_refused(body, param):
    with pytest.raises(ContextTooLong) as caught:
        sampling(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (completion(max_tokens=4, min_tokens=5), "min_tokens"),
        (completion(min_tokens=17), "min_tokens"),
        (completion(logit_bias={"100": 1.0}), "logit_bias"),
        (completion(logit_bias={"-1": 1.0}), "logit_bias"),
        (completion(logit_bias={"x": 1.0}), "logit_bias"),
        (completion(logit_bias={"1_0": 1.0}), "logit_bias"),
        (completion(logit_bias={"\u0661": 1.0}), "logit_bias"),
        (completion(logit_bias={"9" * 5000: 1.0}), "logit_bias"),
        (completion(stop_token_ids=[100]), "stop_token_ids"),
        (completion(stop=""), "stop"),
        (completion(stream_options=StreamOptions(include_usage=True)), "stream_options"),
        (completion(stream=True, prompt_logprobs=1), "prompt_logprobs"),
        (completion(response_format=ResponseFormat("json_object")), "response_format"),
        (chat(top_logprobs=2), "top_logprobs"),
        (chat(top_logprobs=2, logprobs=False), "top_logprobs"),
        (chat(tool_choice="required"), "tool_choice"),
        (chat(tool_choice={"type": "function"}), "tool_choice"),
    ],
)
def test_contradictions_and_what_the_engine_cannot_do_are_refused(body, param):
    with pytest.raises(BadRequest) as caught:
        sampling(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "logprobs"),
    [
        (completion(), None),
        (completion(logprobs=0), 0),
        (chat(), None),
        (chat(logprobs=False, top_logprobs=0), None),
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=4), 4),
    ],
)
def test_both_endpoints_have_their_own_words_for_logprobs(body, logprobs):
    assert wishes_of(body).logprobs == logprobs
    assert sampling(body).logprobs == logprobs


def test_an_echoed_prompt_is_scored_like_the_answer():
    assert sampling(completion(echo=True)).prompt_logprobs is None
    assert sampling(completion(echo=True, logprobs=2)).prompt_logprobs == 2
    assert sampling(completion(echo=True, logprobs=2, prompt_logprobs=5)).prompt_logprobs == 5


def test_wishes_of_a_stream():
    options = StreamOptions(include_usage=True, continuous_usage_stats=True)
    assert wishes_of(completion(stream=True, stream_options=options, return_token_ids=True, echo=True)) == Wishes(
        stream=True, include_usage=True, continuous_usage=True, echo=True, token_ids=True
    )
    assert wishes_of(chat(response_format=ResponseFormat("text"), tool_choice="auto")) == Wishes()
