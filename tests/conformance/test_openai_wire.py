"""The official `openai` client against the shim's front on a real server; the engine behind it is a stand-in.

`front_of_shim` is one implementation; whatever speaks OpenAI's wire can be put beside it.
"""

from __future__ import annotations

import asyncio
import socket

import httpx
import openai
import pytest
import uvicorn

from engine_shim.serve.app import build_app
from engine_shim.settings import ShimSettings
from router.contract.errors import Draining, KVWaitTimeout, NoSeats
from tests.support.fake_driver import CONTEXT_TOKENS, MODEL, FakeDriver, byte_tokenizer

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture
async def front_of_shim(tokenizer):
    driver = FakeDriver(tokenizer)
    app = build_app(driver, settings=ShimSettings(max_body_bytes=1 << 20))
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", log_level="error", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    yield driver, f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest.fixture
async def driver(front_of_shim):
    return front_of_shim[0]


@pytest.fixture
async def client(front_of_shim):
    async with openai.AsyncOpenAI(base_url=f"{front_of_shim[1]}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_models(client):
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


async def test_a_chat(client):
    answer = await client.chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello wörld"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len("user:hi") + 1
    assert answer.usage.completion_tokens == len("Hello wörld".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


async def test_a_streamed_chat_with_usage(client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    *body, last = chunks
    assert "".join(chunk.choices[0].delta.content for chunk in body) == "Hello wörld"
    assert [chunk.choices[0].delta.role for chunk in body] == ["assistant"] + [None] * (len(body) - 1)
    assert [chunk.choices[0].finish_reason for chunk in body] == [None] * (len(body) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in body)
    assert (last.choices, last.usage.completion_tokens) == ([], 13)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_completion(client):
    answer = await client.completions.create(model=MODEL, prompt="hi", max_tokens=5, echo=True)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("hiHello", "length")
    assert answer.usage.completion_tokens == 5


async def test_a_completion_has_16_tokens_by_default(client, driver):
    driver.text = "x" * 40
    answer = await client.completions.create(model=MODEL, prompt="hi")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("x" * 16, "length")


@pytest.mark.parametrize("prompt", [[104, 105], ["hi", "ho"], [[104], [105, 106]]])
async def test_a_streamed_completion_of_every_kind_of_prompt(client, prompt):
    num_choices = 1 if isinstance(prompt[0], int) else len(prompt)
    texts = [""] * num_choices
    async for chunk in await client.completions.create(model=MODEL, prompt=prompt, max_tokens=5, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["Hello"] * num_choices


async def test_several_choices(client):
    answer = await client.chat.completions.create(model=MODEL, messages=HI, n=3, max_completion_tokens=2)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, "He"), (1, "He"), (2, "He")]


async def test_stop_strings(client):
    answer = await client.completions.create(model=MODEL, prompt="hi", stop=["wör", "zzz"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello ", "stop")
    assert answer.choices[0].stop_reason == "wör"
    answer = await client.completions.create(
        model=MODEL, prompt="hi", stop="wör", extra_body={"include_stop_str_in_output": True}
    )
    assert answer.choices[0].text == "Hello wör"


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_logprobs(client, stream):
    asked = {"model": MODEL, "messages": HI, "logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    if stream:
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
        positions = [
            each for chunk in chunks if chunk.choices[0].logprobs for each in chunk.choices[0].logprobs.content
        ]
    else:
        positions = (await client.chat.completions.create(**asked)).choices[0].logprobs.content
    assert [position.token for position in positions] == ["H", "e", "l"]
    assert [position.bytes for position in positions] == [[72], [101], [108]]
    assert {position.logprob for position in positions} == {-0.5}
    assert [(top.token, top.logprob) for top in positions[0].top_logprobs] == [("A", -0.25), ("B", -0.5)]


async def test_completion_logprobs(client):
    answer = await client.completions.create(model=MODEL, prompt="hi", logprobs=1, max_tokens=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["H", "e", "l"]
    assert logprobs.token_logprobs == [-0.5, -0.5, -0.5]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs[0] == {"A": -0.25, "H": -0.5}


async def test_sampling_fields_of_vllm_reach_the_engine(client, driver):
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "ignore_eos": True, "min_tokens": 2}
    await client.completions.create(model=MODEL, prompt="hi", seed=3, extra_body=extra)
    sampling = driver.streams[0].request.sampling
    assert {name: getattr(sampling, name) for name in extra} == extra
    assert sampling.seed == 3


BAD = [
    ({"model": "other"}, openai.NotFoundError, "model", "model_not_found"),
    ({"prompt": ""}, openai.BadRequestError, "prompt", "bad_request"),
    ({"max_tokens": -1}, openai.BadRequestError, "max_tokens", "bad_request"),
    ({"temperature": "x"}, openai.BadRequestError, "temperature", "bad_request"),
    ({"prompt": "x" * CONTEXT_TOKENS}, openai.BadRequestError, "prompt", "context_length_exceeded"),
    ({"max_tokens": CONTEXT_TOKENS}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "kind", "param", "code"), BAD)
async def test_bad_input_raises_the_clients_own_errors(client, driver, fields, kind, param, code, stream):
    with pytest.raises(kind) as caught:
        await client.completions.create(**{"model": MODEL, "prompt": "hi", "stream": stream} | fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"
    assert driver.streams == []


@pytest.mark.parametrize("error", [NoSeats("Full."), Draining("Going.")])
async def test_refusals_are_server_errors(client, driver, error):
    driver.refusal = error
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HI)
    assert (caught.value.status_code, caught.value.code) == (503, error.code)


async def test_a_failure_before_the_first_token_raises_even_when_streamed(client, driver):
    driver.failure, driver.fails_after = KVWaitTimeout("Late."), 0
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    assert (caught.value.status_code, caught.value.code) == (504, "kv_wait_timeout")


async def test_a_failure_in_the_stream_raises_after_the_text_before_it(client, driver):
    driver.failure, driver.fails_after = KVWaitTimeout("Late."), 2
    text = ""
    with pytest.raises(openai.APIError, match="Late") as caught:
        async for chunk in await client.completions.create(model=MODEL, prompt="hi", stream=True):
            text += chunk.choices[0].text
    assert text == "He"
    assert caught.value.code == "kv_wait_timeout"


async def test_a_client_that_closes_its_stream_ends_the_sequence(client, driver):
    driver.num_open_outputs = 2
    stream = await client.completions.create(model=MODEL, prompt="hi", stream=True, n=2)
    await anext(aiter(stream))
    await stream.close()
    async with asyncio.timeout(10):
        while not all(each.closed for each in driver.streams):
            await asyncio.sleep(0.005)
    assert [each.finished for each in driver.streams] == [False, False]


async def test_events_are_on_the_wire_as_they_are_made(front_of_shim):
    driver, url = front_of_shim
    driver.num_open_outputs = 1
    body = {"prompt": "hi", "stream": True, "max_tokens": 2}
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", f"{url}/v1/completions", json=body, headers={"X-Request-Id": "r-1"}) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        pieces = answer.aiter_bytes()
        first = await anext(pieces)
        assert first.startswith(b'data: {"object":"text_completion","id":"cmpl-r-1",')
        assert first.endswith(b"}\n\n")
        await driver.open_gate()
        rest = b"".join([piece async for piece in pieces])
    assert rest.endswith(b"}\n\ndata: [DONE]\n\n")


async def test_a_body_of_20_megabytes_is_refused_and_the_connection_lives(front_of_shim):
    _, url = front_of_shim
    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=1)) as client:
        answer = await client.post("/v1/completions", json={"prompt": "x" * (20 << 20)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert (await client.get("/healthz")).status_code == 200
