from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from engine_shim.engine.reference.tokenizer import Tokenizer
from engine_shim.engine.reference.vocabulary import Vocabulary
from engine_shim.serve.intake import Prompt
from engine_shim.serve.openai_body import ChatBody, CompletionBody
from engine_shim.serve.prompts import PromptReader
from router.contract.errors import BadRequest, ContextTooLong, ModelUnknown
from tests.support.fake_driver import CONTEXT_TOKENS, MODEL, FakeDriver

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def prompts(tokenizer):
    return PromptReader(FakeDriver(tokenizer).card, tokenizer)


@pytest.mark.parametrize("name", [None, MODEL])
async def test_the_served_model_is_known_by_name_or_by_default(prompts, name):
    prompts.check_model(name)


@pytest.mark.parametrize("name", ["", "other", MODEL.upper()])
async def test_any_other_model_is_unknown(prompts, name):
    with pytest.raises(ModelUnknown) as caught:
        prompts.check_model(name)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [Prompt((97, 98), "ab")]),
        (["a", "b"], [Prompt((97,), "a"), Prompt((98,), "b")]),
        ([1, 2], [Prompt((1, 2), None)]),
        ([[1], [2, 3]], [Prompt((1,), None), Prompt((2, 3), None)]),
    ],
)
async def test_the_four_forms_of_a_prompt(prompts, prompt, expected):
    assert prompts.completion_prompts(CompletionBody(prompt=prompt)) == tuple(expected)


@pytest.mark.parametrize("prompt", ["", [], [""], ["a", ""], [[]], [[1], []]])
async def test_an_empty_prompt_is_refused(prompts, prompt):
    with pytest.raises(BadRequest, match="prompt is empty") as caught:
        prompts.completion_prompts(CompletionBody(prompt=prompt))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [["a", 1], [1, "a"], [[1], 2], ["a", [1]]])
async def test_a_mixed_prompt_is_refused(prompts, prompt):
    with pytest.raises(BadRequest, match="mixes kinds"):
        prompts.completion_prompts(CompletionBody(prompt=prompt))


@pytest.mark.parametrize("prompt", [[-1], [261], [[0], [10**30]]])
async def test_token_ids_outside_the_vocabulary_are_refused(prompts, prompt):
    assert prompts.card.vocab_size == 261
    with pytest.raises(BadRequest, match=r"outside 0\.\.260"):
        prompts.completion_prompts(CompletionBody(prompt=prompt))


async def test_a_chat_goes_through_the_template(prompts):
    ids = prompts.chat_prompt(ChatBody(messages=HI)).token_ids
    assert prompts.tokenizer.decode(ids, skip_special_tokens=False) == "user:hi</s>"


async def test_a_chat_that_renders_to_nothing_is_refused(tokenizer):
    card = FakeDriver(tokenizer).card
    backend = Backend(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    silent = PromptReader(card, Tokenizer(Vocabulary(backend, (), {}, {"default": ""})))
    with pytest.raises(BadRequest, match="messages is empty"):
        silent.chat_prompt(ChatBody(messages=HI))


async def test_template_variables_must_not_shadow_the_requests_own(prompts):
    with pytest.raises(BadRequest, match="must not set messages") as caught:
        prompts.chat_ids(ChatBody(messages=HI, chat_template_kwargs={"messages": []}))
    assert caught.value.param == "chat_template_kwargs"
    prompts.chat_ids(ChatBody(messages=HI, chat_template_kwargs={"self": 1, "thinking": True}))


async def test_a_final_message_is_continued_without_a_generation_prompt(prompts):
    body = ChatBody(messages=[*HI, {"role": "assistant", "content": "So"}], continue_final_message=True)
    text = prompts.tokenizer.decode(prompts.chat_ids(body), skip_special_tokens=False)
    assert text == "user:hi</s>assistant:So"
    with pytest.raises(BadRequest, match="exclude each other"):
        prompts.chat_ids(ChatBody(messages=HI, continue_final_message=True, add_generation_prompt=True))


async def test_the_longest_prompt_decides_how_much_room_is_left(prompts):
    assert prompts.room_tokens((Prompt((0,) * 10, None), Prompt((0,) * 20, None)), "prompt") == CONTEXT_TOKENS - 20
    assert prompts.room_tokens((Prompt((0,) * (CONTEXT_TOKENS - 1), None),), "prompt") == 1
    with pytest.raises(ContextTooLong) as caught:
        prompts.room_tokens((Prompt((0,) * CONTEXT_TOKENS, None),), "messages")
    assert caught.value.param == "messages"


async def test_an_endless_text_is_refused_without_being_encoded(prompts, monkeypatch):
    monkeypatch.setattr(type(prompts.tokenizer), "encode", None)
    with pytest.raises(ContextTooLong, match="at least"):
        prompts.text_ids("x" * 1_000_000, add_special_tokens=False, param="prompt")
