from __future__ import annotations

import pytest

from tests.support.fake_driver import CONTEXT_TOKENS, MODEL

ENTRY = {
    "id": MODEL,
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "tandem",
    "max_model_len": CONTEXT_TOKENS,
    "root": MODEL,
    "parent": None,
}


async def test_the_served_model_is_listed_and_described(client):
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": [ENTRY]}
    assert (await client.get(f"/v1/models/{MODEL}")).json() == ENTRY


async def test_another_model_is_not_found(client):
    answer = await client.get("/v1/models/org/other")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_health_is_the_process_and_readiness_the_driver(client, driver):
    assert (await client.get("/readyz")).status_code == 200
    driver.ready = False
    assert (await client.get("/healthz")).status_code == 200
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"


async def test_metrics_are_in_prometheus_text_form(client):
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'tandem_shim_free_blocks{instance_id="fake",role="both"} 4.0\n' in answer.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "aé"}, {"tokens": [97, 0xC3, 0xA9], "token_strs": None}),
        ({"prompt": "ab", "return_token_strs": True}, {"tokens": [97, 98], "token_strs": ["a", "b"]}),
        ({"prompt": "", "model": MODEL}, {"tokens": [], "token_strs": None}),
        ({"messages": [{"role": "u", "content": "x"}]}, {"tokens": [117, 58, 120, 258], "token_strs": None}),
    ],
)
async def test_tokenize(client, body, expected):
    answer = await client.post("/tokenize", json=body)
    assert answer.json() == {"count": len(expected["tokens"]), "max_model_len": CONTEXT_TOKENS, **expected}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "prompt"),
        ({"prompt": "x", "messages": [{"role": "u"}]}, 400, "prompt"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
        ({"prompt": ["x"]}, 400, "prompt"),
    ],
)
async def test_tokenize_refuses(client, body, status, param):
    answer = await client.post("/tokenize", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_detokenize_is_the_way_back(client):
    assert (await client.post("/detokenize", json={"tokens": [97, 0xC3, 0xA9]})).json() == {"prompt": "aé"}
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize("tokens", [[261], [-1], "x", None])
async def test_detokenize_refuses(client, tokens):
    answer = await client.post("/detokenize", json={"tokens": tokens})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")


async def test_a_large_body_is_refused_here_too(client):
    answer = await client.post("/tokenize", content=b" " * 5000)
    assert answer.status_code == 413
