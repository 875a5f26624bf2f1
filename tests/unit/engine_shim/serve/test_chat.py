from __future__ import annotations

import json

from engine_shim.engine.port import FinishReason, SamplingParams, TokenLogprob, TokensOut
from engine_shim.serve.answer import Head
from engine_shim.serve.chat import ChatAnswer
from engine_shim.serve.intake import Endpoint, Intake, Prompt, Wishes

FIRST = TokensOut(
    "s", (72,), "H", (TokenLogprob(72, -0.5, ((73, -0.25),)),), prompt_logprobs=(None, TokenLogprob(66, -2.0))
)
LAST = TokensOut("s", (105,), "i", (TokenLogprob(105, -1.0),), FinishReason.STOP, "END")
LOGPROBS = [
    {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [{"token": "I", "logprob": -0.25, "bytes": [73]}],
    },
    {"token": "i", "logprob": -1.0, "bytes": [105], "top_logprobs": []},
]


def answer_of(tokenizer, n=1, **wishes):
    intake = Intake(Endpoint.CHAT, "r", (Prompt((65, 66), None),), n, SamplingParams(5), Wishes(**wishes), None, 1.0)
    return ChatAnswer(intake, Head("chatcmpl-r", 17, "m"), tokenizer)


def choices(raw):
    events = [json.loads(line.removeprefix("data: ")) for line in raw.decode().split("\n\n") if line]
    assert all(event["object"] == "chat.completion.chunk" and event["id"] == "chatcmpl-r" for event in events)
    return [event["choices"][0] for event in events]


def test_a_whole_answer(tokenizer):
    assert json.loads(answer_of(tokenizer).whole([[FIRST, LAST]], None)) == {
        "id": "chatcmpl-r",
        "object": "chat.completion",
        "created": 17,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": "END",
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_whole_answer_with_everything_that_can_be_wished_for(tokenizer):
    answer = answer_of(tokenizer, n=2, logprobs=1, prompt_logprobs=True, token_ids=True)
    whole = json.loads(answer.whole([[FIRST, LAST], [LAST]], None))
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert whole["choices"][0]["logprobs"] == {"content": LOGPROBS}
    assert [choice["token_ids"] for choice in whole["choices"]] == [[72, 105], [105]]
    assert whole["prompt_token_ids"] == [65, 66]
    assert whole["prompt_logprobs"] == [None, {"66": {"logprob": -2.0, "rank": None, "decoded_token": "B"}}]


def test_the_role_comes_directly_before_the_first_text_of_each_choice(tokenizer):
    answer = answer_of(tokenizer, n=2)
    blank = {"logprobs": None, "finish_reason": None}
    assert choices(answer.events(1, FIRST)) == [
        {"index": 1, "delta": {"role": "assistant", "content": ""}, **blank},
        {"index": 1, "delta": {"content": "H"}, **blank},
    ]
    assert choices(answer.events(0, FIRST))[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices(answer.events(1, LAST)) == [
        {"index": 1, "delta": {"content": "i"}, "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    ]


def test_events_with_everything_that_can_be_wished_for(tokenizer):
    answer = answer_of(tokenizer, logprobs=1, token_ids=True)
    raw = answer.events(0, FIRST)
    assert json.loads(raw.split(b"\n\n")[0][6:])["prompt_token_ids"] == [65, 66]
    assert choices(raw)[1]["token_ids"] == [72]
    assert choices(raw)[1]["logprobs"] == {"content": LOGPROBS[:1]}
    assert "prompt_token_ids" not in json.loads(answer.events(0, LAST)[6:])
