"""Bad input, one table: what is sent, and exactly what comes back. Nothing of it reaches the driver."""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter

from engine_shim.serve.app import build_app
from engine_shim.settings import ShimSettings
from router.contract.errors import NoSeats
from tests.support.fake_driver import CONTEXT_TOKENS, MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
BAD = "bad_request"
LONG = "context_length_exceeded"

COMMON = [
    ({"model": "other"}, 404, "model", "model_not_found"),
    ({"model": 3}, 400, "model", BAD),
    ({"max_tokens": 0}, 400, "max_tokens", BAD),
    ({"max_tokens": -1}, 400, "max_tokens", BAD),
    ({"max_tokens": "5"}, 400, "max_tokens", BAD),
    ({"max_tokens": 1.5}, 400, "max_tokens", BAD),
    ({"max_tokens": True}, 400, "max_tokens", BAD),
    ({"max_tokens": CONTEXT_TOKENS}, 400, "max_tokens", LONG),
    ({"max_tokens": 10**30}, 400, "max_tokens", LONG),
    ({"min_tokens": -1}, 400, "min_tokens", BAD),
    ({"max_tokens": 2, "min_tokens": 3}, 400, "min_tokens", BAD),
    ({"temperature": -0.1}, 400, "temperature", BAD),
    ({"temperature": 2.1}, 400, "temperature", BAD),
    ({"temperature": "hot"}, 400, "temperature", BAD),
    ({"top_p": 0}, 400, "top_p", BAD),
    ({"top_p": 1.01}, 400, "top_p", BAD),
    ({"top_k": -2}, 400, "top_k", BAD),
    ({"min_p": -0.1}, 400, "min_p", BAD),
    ({"min_p": 1.1}, 400, "min_p", BAD),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", BAD),
    ({"presence_penalty": 2.5}, 400, "presence_penalty", BAD),
    ({"frequency_penalty": -2.5}, 400, "frequency_penalty", BAD),
    ({"seed": 2**63}, 400, "seed", BAD),
    ({"seed": "x"}, 400, "seed", BAD),
    ({"n": 0}, 400, "n", BAD),
    ({"n": 129}, 400, "n", BAD),
    ({"best_of": 2}, 400, "best_of", BAD),
    ({"stream": "yes"}, 400, "stream", BAD),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", BAD),
    ({"stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options", BAD),
    ({"stop": ["x"] * 17}, 400, "stop", BAD),
    ({"stop": 5}, 400, "stop", BAD),
    ({"stop": ["a", 5]}, 400, "stop", BAD),
    ({"stop": ["a", ""]}, 400, "stop", BAD),
    ({"stop_token_ids": [99999]}, 400, "stop_token_ids", BAD),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias", BAD),
    ({"logit_bias": {"5": "x"}}, 400, "logit_bias", BAD),
    ({"logit_bias": {"99999": 1}}, 400, "logit_bias", BAD),
    ({"logit_bias": [1]}, 400, "logit_bias", BAD),
    ({"prompt_logprobs": 21}, 400, "prompt_logprobs", BAD),
    ({"response_format": {"type": "json_object"}}, 400, "response_format", BAD),
    ({"guided_json": {}, "guided_regex": "a+"}, 400, "guided_regex", BAD),
    ({"kv_transfer_params": 3}, 400, "kv_transfer_params", BAD),
    ({"kv_transfer_params": {"do_remote_prefill": True}}, 400, "kv_transfer_params", BAD),
]
COMPLETION_ONLY = [
    ({"prompt": ""}, 400, "prompt", BAD),
    ({"prompt": []}, 400, "prompt", BAD),
    ({"prompt": [""]}, 400, "prompt", BAD),
    ({"prompt": [[]]}, 400, "prompt", BAD),
    ({"prompt": None}, 400, "prompt", BAD),
    ({"prompt": 7}, 400, "prompt", BAD),
    ({"prompt": {"text": "x"}}, 400, "prompt", BAD),
    ({"prompt": ["a", 7]}, 400, "prompt", BAD),
    ({"prompt": [99999]}, 400, "prompt", BAD),
    ({"prompt": [1.5]}, 400, "prompt", BAD),
    ({"prompt": "x" * CONTEXT_TOKENS}, 400, "prompt", LONG),
    ({"prompt": ["x", "x" * CONTEXT_TOKENS]}, 400, "prompt", LONG),
    ({"logprobs": 21}, 400, "logprobs", BAD),
    ({"logprobs": True}, 400, "logprobs", BAD),
    ({"suffix": "x"}, 400, "suffix", BAD),
    ({"echo": "yes"}, 400, "echo", BAD),
]
CHAT_ONLY = [
    ({"messages": []}, 400, "messages", BAD),
    ({"messages": "hi"}, 400, "messages", BAD),
    ({"messages": ["hi"]}, 400, "messages", BAD),
    ({"messages": [{"content": "hi"}]}, 400, "messages", BAD),
    ({"messages": [{"role": "user", "content": 3}]}, 400, "messages", BAD),
    ({"messages": [{"role": "user", "content": "x" * CONTEXT_TOKENS}]}, 400, "messages", LONG),
    ({"max_completion_tokens": 0}, 400, "max_completion_tokens", BAD),
    ({"logprobs": 1}, 400, "logprobs", BAD),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", BAD),
    ({"top_logprobs": 2}, 400, "top_logprobs", BAD),
    ({"tools": "x"}, 400, "tools", BAD),
    ({"tool_choice": "required"}, 400, "tool_choice", BAD),
    ({"chat_template_kwargs": {"tools": []}}, 400, "chat_template_kwargs", BAD),
    ({"chat_template": "x"}, 400, "chat_template", BAD),
    ({"continue_final_message": True, "add_generation_prompt": True}, 400, "continue_final_message", BAD),
]
TABLE = [(path, *row) for path in (CHAT, COMPLETIONS) for row in COMMON]
TABLE += [(COMPLETIONS, *row) for row in COMPLETION_ONLY] + [(CHAT, *row) for row in CHAT_ONLY]


@pytest.mark.parametrize(("path", "fields", "status", "param", "code"), TABLE)
async def test_bad_fields(client, driver, path, fields, status, param, code):
    body = {"model": MODEL, "messages": HI} if path == CHAT else {"model": MODEL, "prompt": "hi"}
    answer = await client.post(path, json=body | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert driver.streams == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("content", "status", "param", "code"),
    [
        (b"", 400, None, BAD),
        (b"{", 400, None, BAD),
        (b'{"model": "\xff"}', 400, None, BAD),
        (b"[]", 400, None, BAD),
        (b" " * 4097, 413, None, "body_too_large"),
    ],
)
async def test_bad_bodies(client, driver, path, content, status, param, code):
    answer = await client.post(path, content=content)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert driver.streams == []


async def test_a_body_without_declared_length_is_measured_too(client, driver):
    async def endless():
        for _ in range(5):
            yield b" " * 1000

    answer = await client.post(COMPLETIONS, content=endless())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", COMPLETIONS, 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/tokenize", 405, "method_not_allowed"),
    ],
)
async def test_bad_routes(client, method, path, status, code):
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("allow" in answer.headers) is (status == 405)


async def test_an_unforeseen_error_of_a_route_is_a_500_in_the_envelope(client, driver):
    driver.load = None
    answer = await client.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "NoneType" not in answer.text


@pytest.fixture
async def side_client(driver):
    side_channel = APIRouter()

    @side_channel.get("/kv/thing")
    async def thing():
        raise NoSeats("Full.")

    app = build_app(driver, settings=ShimSettings(), side_channel=side_channel)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shim") as client:
        yield client


async def test_a_side_channel_is_mounted_and_its_errors_have_the_envelope(side_client):
    answer = await side_client.get("/kv/thing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_seats")


async def test_a_client_that_leaves_while_it_sends_is_no_error(app, caplog):
    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    for path in ("/tokenize", CHAT):
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": ""}
        await app(scope, receive, send)
    assert caplog.records == []
