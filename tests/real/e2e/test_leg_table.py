"""What each leg must carry: both legs compute the same prompt, and the answer is that of one plain engine.

200 random requests over all fields; the plain engine is prefill's, asked directly.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from router.legs.prefill import prefill_body
from tests.support.leg_requests import leg_request
from tests.support.up import Up, read_metrics, tiny_up

pytestmark = [pytest.mark.needs("nixl", "redis"), pytest.mark.timeout(300)]
NUM_REQUESTS = 200
AT_ONCE = 8


@pytest.fixture(scope="module")
def exact_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with tiny_up(tmp_path_factory.mktemp("exact-up"), "--numerics", "invariant") as running:
        yield running


def _told(answer: httpx.Response) -> dict[str, Any]:
    """What an answer says, streamed or not: usage, and by choice its prompt's ids, text, tokens and end."""
    assert answer.status_code == 200, answer.text
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in answer.text.split("\n\n") if line] if streamed else [answer.text]
    told: dict[str, Any] = {"choices": {}, "prompts": {}, "usage": None}
    for event in (json.loads(line) for line in lines if line != "[DONE]"):
        if event.get("prompt_token_ids"):
            told["prompts"].setdefault(0, event["prompt_token_ids"])
        for choice in event["choices"]:
            _add(told, choice)
        if event.get("usage"):
            told["usage"] = {name: event["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
        if event.get("prompt_logprobs"):
            told["prompt_logprobs"] = event["prompt_logprobs"]
    return told


def _add(told: dict[str, Any], choice: dict[str, Any]) -> None:
    kept = told["choices"].setdefault(choice["index"], {"text": "", "tokens": [], "logprobs": [], "finish": None})
    words = choice.get("delta") or choice.get("message") or choice
    kept["text"] += words.get("content") or words.get("text") or ""
    kept["tokens"] += choice.get("token_ids") or []
    kept["logprobs"].append(json.dumps(choice.get("logprobs"))) if choice.get("logprobs") else None
    kept["finish"] = choice.get("finish_reason") or kept["finish"]
    if choice.get("prompt_token_ids"):
        told["prompts"].setdefault(choice["index"], choice["prompt_token_ids"])


async def _ask(client: httpx.AsyncClient, url: str, fields: dict[str, Any]) -> dict[str, Any]:
    return _told(await client.post(url, json=fields))


async def _compare(client: httpx.AsyncClient, up: Up, plain_url: str, seed: int) -> None:
    path, fields = leg_request(seed)
    sent = {name: value for name, value in fields.items() if name not in ("kv_transfer_params", "request_id")}
    answered = await _ask(client, up.url + path, fields)
    plain = await _ask(client, plain_url + path, sent)
    assert answered["prompts"] and answered["prompts"][0], "an answer tells what decode took for the prompt"
    assert answered == plain, f"request {seed}: {fields}"
    if not isinstance(fields.get("prompt"), list) or isinstance(fields["prompt"][0], int):
        prefills = json.loads(prefill_body(json.dumps(sent).encode(), b"{}"))
        del prefills["kv_transfer_params"]
        legs = await _ask(client, plain_url + path, prefills)
        assert legs["prompts"][0] == answered["prompts"][0], f"request {seed}: {fields}"
        assert legs["usage"]["completion_tokens"] == 1


async def test_both_legs_compute_one_prompt_and_the_answer_is_a_plain_engines(exact_up: Up) -> None:
    plain_url = next(url for name, url in exact_up.engines().items() if name.startswith("prefill"))
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, seed: int) -> None:
        async with gate:
            await _compare(client, exact_up, plain_url, seed)

    async with httpx.AsyncClient(timeout=120) as client:
        await asyncio.gather(*(one(client, seed) for seed in range(NUM_REQUESTS)))
    exact_up.wait_quiet()
    text = httpx.get(f"{exact_up.url}/metrics").text
    placed = [line for line in text.splitlines() if line.startswith("tandem_placement_total{")]
    pushed = sum(float(line.rpartition(" ")[2]) for line in placed if 'mode="push"' in line)
    assert NUM_REQUESTS / 2 < pushed < NUM_REQUESTS, "most were handed over, and some could not be"
    assert read_metrics(exact_up.url)["tandem_requests_total"] == NUM_REQUESTS
