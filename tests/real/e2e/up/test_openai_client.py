"""The official openai client, unchanged, through the router in push mode."""

import os
import subprocess
import sys

import httpx
import openai
import pytest

from tests.support.up import MODEL, ROOT, Up, read_metrics

pytestmark = [pytest.mark.needs("nixl", "model", "redis"), pytest.mark.timeout(300)]
QUESTION = [{"role": "user", "content": "Name three colours, separated by commas."}]


@pytest.fixture
def client(quiet_after: Up) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{quiet_after.url}/v1", api_key="unused", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_is_pushed_and_decode_computes_one_prompt_token_only(client: openai.OpenAI, up: Up) -> None:
    before = read_metrics(up.url).get("tandem_placement_total", 0)
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=10)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1
    assert read_metrics(up.url).get("tandem_placement_total", 0) == before + 1


def test_the_router_knows_how_the_rendezvous_went(client: openai.OpenAI, up: Up) -> None:
    before = read_metrics(up.url).get("tandem_rendezvous_total", 0)
    list(client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=5, stream=True))
    record = httpx.get(f"{up.url}/admin/requests").json()["requests"][0]
    assert 0 < record["seats_s"] < record["content_s"] and 0 < record["kv_s"] < record["content_s"]
    assert read_metrics(up.url)["tandem_rendezvous_total"] == before + 1
    told = {name: read_metrics(url) for name, url in up.engines().items()}
    assert sum(one["tandem_shim_rendezvous_total"] for one in told.values()) > 0
    assert sum(one["tandem_shim_transfer_seconds_count"] for one in told.values()) > 0


def test_streamed_chat_says_the_same_as_the_plain_one(client: openai.OpenAI) -> None:
    wish = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    plain = client.chat.completions.create(**wish)
    events = list(client.chat.completions.create(**wish, stream=True, stream_options={"include_usage": True}))
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == plain.choices[0].message.content
    assert events[0].choices[0].delta.role == "assistant"
    assert [event.usage for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].choices == []
    assert events[-1].usage is not None
    assert plain.usage is not None
    assert events[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert len({(event.id, event.created, event.model) for event in events}) == 1
    no_usage = list(client.chat.completions.create(**wish, stream=True))
    assert all(event.choices for event in no_usage)


def test_completions_with_stop_and_token_prompts(client: openai.OpenAI) -> None:
    wish = {"model": MODEL, "prompt": "One, two, three, four,", "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**wish).choices[0]
    stop = whole.text[3:6]
    cut = client.completions.create(**wish, stop=stop).choices[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    tokens = client.completions.create(model=MODEL, prompt=[504, 3575, 282], temperature=0, max_tokens=4)
    assert tokens.usage is not None
    assert tokens.usage.prompt_tokens == 3


def test_logprobs_cover_every_token_the_first_included(client: openai.OpenAI) -> None:
    wish = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 4}
    answer = client.chat.completions.create(**wish, logprobs=True, top_logprobs=5)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 5
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert entry.bytes is not None
    legacy = client.completions.create(model=MODEL, prompt="Once upon", temperature=0, max_tokens=3, logprobs=2)
    assert legacy.choices[0].logprobs is not None
    assert len(legacy.choices[0].logprobs.token_logprobs or []) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_n_answers_come_from_decode_alone(client: openai.OpenAI, stream: bool) -> None:
    wish = {"model": MODEL, "messages": QUESTION, "temperature": 0.9, "seed": 5, "max_tokens": 5, "n": 3}
    if stream:
        events = list(client.chat.completions.create(**wish, stream=True))
        finished = sorted(c.index for event in events for c in event.choices if c.finish_reason)
    else:
        finished = sorted(choice.index for choice in client.chat.completions.create(**wish).choices)
    assert finished == [0, 1, 2]


def test_a_list_of_prompts_is_answered_in_order(client: openai.OpenAI) -> None:
    prompts = ["One plus one is", "The sky is"]
    both = client.completions.create(model=MODEL, prompt=prompts, temperature=0, max_tokens=4)
    each = [client.completions.create(model=MODEL, prompt=p, temperature=0, max_tokens=4) for p in prompts]
    assert [choice.index for choice in both.choices] == [0, 1]
    assert [choice.text for choice in both.choices] == [one.choices[0].text for one in each]


def test_a_seed_gives_the_same_tokens_again(client: openai.OpenAI) -> None:
    wish = {"model": MODEL, "messages": QUESTION, "temperature": 1.2, "seed": 77, "max_tokens": 8}
    texts = {client.chat.completions.create(**wish).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1


def test_errors_are_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as negative:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=-1)
    assert negative.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt=[1] * 9000)
    assert long.value.code == "context_length_exceeded"


async def test_the_async_client_and_32_at_once(quiet_after: Up) -> None:
    import asyncio

    async with openai.AsyncOpenAI(base_url=f"{quiet_after.url}/v1", api_key="unused", max_retries=0) as client:
        asked = [
            client.completions.create(model=MODEL, prompt=f"Number {k}:", temperature=0, max_tokens=6)
            for k in range(32)
        ]
        answers = await asyncio.gather(*asked)
    assert all(answer.choices[0].finish_reason for answer in answers)


def test_helm_test_passes(quiet_after: Up) -> None:
    """The chart's test pod runs this script; the rest of a pod is Kubernetes' own."""
    script = ROOT / "helm" / "tandem" / "files" / "send_completion.py"
    said = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"URL": quiet_after.url, "TIMEOUT_S": "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"{MODEL} answers ")
