import json
import random

import httpx
import pytest

from router.bench.prompts import UNCOUNTED, Vocabulary, learn_vocabulary, read_prompts
from router.contract.errors import BadSettings
from tests.support.openai_stand_in import OpenAIStandIn


async def learn(answer, *, chat):
    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await learn_vocabulary(client, "m", chat=chat)


def tokenizer(*, long_words=(), template_tokens=0):
    """Counts a token a word, two for a long word, and the template's for messages."""

    def answer(request):
        asked = json.loads(request.content)
        text = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        count = sum(2 if word in long_words else 1 for word in text.split())
        return httpx.Response(200, json={"count": count + (template_tokens if "messages" in asked else 0)})

    return answer


async def test_words_of_several_tokens_are_left_out():
    vocabulary = await learn(tokenizer(long_words={"the", "of"}), chat=False)
    assert vocabulary.is_counted
    assert not {"the", "of"} & set(vocabulary.words)
    assert len(vocabulary.words) == len(UNCOUNTED.words) - 2


async def test_the_template_counts_towards_the_length():
    vocabulary = await learn(tokenizer(template_tokens=7), chat=True)
    assert vocabulary.extra_tokens == 7
    assert len(vocabulary.prompt(20, random.Random(0)).split()) == 13
    assert len(vocabulary.prompt(3, random.Random(0)).split()) == 1


async def test_without_a_tokenizer_words_are_taken_for_tokens():
    assert await learn(lambda request: httpx.Response(404), chat=True) is UNCOUNTED
    assert await learn(tokenizer(long_words=set(UNCOUNTED.words)), chat=False) is UNCOUNTED


async def test_the_stand_in_counts_what_a_prompt_was_made_for():
    async with OpenAIStandIn() as server, httpx.AsyncClient(base_url=server.url) as client:
        vocabulary = await learn_vocabulary(client, "m", chat=True)
        text = vocabulary.prompt(50, random.Random(1))
        asked = {"messages": [{"role": "user", "content": text}]}
        assert (await client.post("/tokenize", json=asked)).json() == {"count": 50}


def test_prompts_of_one_seed_are_equal_and_begin_differently():
    vocabulary = Vocabulary(UNCOUNTED.words, 0, is_counted=False)
    dice = random.Random(5)
    texts = [vocabulary.prompt(64, dice) for _ in range(100)]
    again = random.Random(5)
    assert [vocabulary.prompt(64, again) for _ in range(100)] == texts
    assert len({" ".join(text.split()[:4]) for text in texts}) == 100


def test_prompts_are_read_from_a_file(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n  \nzwei ü\n", encoding="utf-8")
    assert read_prompts(path) == ["one", "zwei ü"]


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_prompts_is_refused(tmp_path, content):
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSettings):
        read_prompts(path)
