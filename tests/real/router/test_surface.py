"""What there is beside inference: models, health, metrics, the fleet, the documentation, tokenizers, the SDK."""

import asyncio
import json

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.bench.mock_behaviour import Fault
from router.contract.instance import Role
from router.discovery import server as server_module
from tests.support.routers import BODY, PATH, rig, until

CHAT_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "tok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
CHAT_EVENT = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "tok "}, "finish_reason": None}],
}


async def test_a_model_is_listed_while_it_can_be_served():
    async with rig() as r:
        listed = (await r.client.get("/v1/models")).json()
        (model,) = listed["data"]
        assert listed["object"] == "list"
        assert (model["id"], model["object"], model["max_model_len"]) == ("m", "model", 4096)
        assert isinstance(model["created"], int)
        assert (await r.client.get("/v1/models/m")).json() == model
        missing = await r.client.get("/v1/models/org/other")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/models/org/model", "/v1/models/org%2Fmodel"])
async def test_a_slash_in_a_models_name_is_part_of_it(path):
    async with rig() as r:
        for engine in r.engines:
            engine.model = "org/model"
        await until(lambda: "org/model" in r.parts.router.fleet.pools)
        assert (await r.client.get(path)).json()["id"] == "org/model"


async def test_readiness_needs_a_pair_and_health_does_not():
    async with rig(num_prefill=0) as r:
        assert (await r.client.get("/healthz")).status_code == 200
        assert (await r.client.get("/health")).status_code == 200
        unready = await r.client.get("/readyz")
        assert (unready.status_code, unready.json()["ready"], unready.headers["retry-after"]) == (503, False, "1")
        assert unready.json()["reason"].startswith("No prefill instance is live")
        assert (await r.client.get("/v1/models")).json()["data"] == []
        refused = await r.client.post(PATH, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_prefill")
        assert refused.headers["retry-after"] == "1"
    async with rig() as r:
        ready = await r.client.get("/ready")
        assert (ready.status_code, ready.json()) == (
            200,
            {"ready": True, "reason": "", "draining": False, "degraded": False, "models": ["m"], "workers": 1},
        )


async def test_an_engine_that_is_gone_leaves_the_fleet(monkeypatch):
    monkeypatch.setattr(server_module, "LEASE_S", 1.5)
    async with rig() as r:
        await r.decode.stop()
        await until(lambda: not r.parts.router.fleet.serves)
        refused = await r.client.post(PATH, json=BODY)
        assert refused.json()["error"]["code"] == "no_decode"


async def test_metrics_parse_and_tell_what_happened():
    async with rig() as r:
        await r.client.post(PATH, json=BODY)
        await r.client.post(PATH, json=BODY | {"stream": True})
        await r.client.post(PATH, json=BODY | {"model": "nobody's"})
        r.behave(r.decode, fault=Fault.REFUSE, status=400)
        await r.client.post(PATH, json=BODY)
        answer = await r.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        for name in ("ttft", "tpot", "e2e", "router_overhead", "phase"):
            assert families[f"tandem_{name}_seconds"].type == "histogram"
        counts = {
            (s.labels["stream"], s.labels["outcome"], s.labels["code"], s.labels["model"]): s.value
            for s in families["tandem_requests"].samples
        }
        assert counts == {
            ("false", "served", "", "m"): 1.0,
            ("true", "served", "", "m"): 1.0,
            ("false", "refused", "model_not_found", "other"): 1.0,
            ("false", "refused", "mock", "m"): 1.0,
        }
        assert families["tandem_requests_in_flight"].samples[0].value == 0.0
        assert families["tandem_open_tickets"].samples[0].value == 0.0
        assert {s.labels["role"] for s in families["tandem_legs_in_flight"].samples} == {"prefill", "decode", "both"}
        assert families["tandem_store_degraded"].samples[0].value == 0.0


async def test_the_fleet_is_shown():
    async with rig() as r:
        r.behave(r.prefill, delay_s=1.0)
        r.behave(r.decode, delay_s=1.0)
        request = asyncio.create_task(r.client.post(PATH, json=BODY))
        await until(lambda: len(r.decode.seen) == 1)
        shown = (await r.client.get("/admin/fleet")).json()
        by_name = {instance["instance_id"]: instance for instance in shown["instances"]}
        assert by_name["p0"]["role"] == Role.PREFILL
        assert by_name["d0"]["on_its_way"] == 1
        assert by_name["d0"]["load"]["running_seqs"] == 0
        await request


async def test_the_documentation_lists_what_is_served():
    async with rig() as r:
        paths = (await r.client.get("/openapi.json")).json()["paths"]
        assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/healthz", "/readyz"} <= set(paths)
        assert (await r.client.get("/docs")).status_code == 200


async def test_the_official_client_works_unchanged():
    async with rig() as r:
        sdk = openai.AsyncOpenAI(base_url=r.url + "/v1", api_key="k", max_retries=0, http_client=httpx.AsyncClient())
        r.behave(r.decode, answer=json.dumps(CHAT_ANSWER).encode(), event=json.dumps(CHAT_EVENT).encode(), num_events=3)
        message = [{"role": "user", "content": "hi"}]
        answer = await sdk.chat.completions.create(model="m", messages=message)
        assert answer.choices[0].message.content == "tok"
        stream = await sdk.chat.completions.create(model="m", messages=message, stream=True)
        assert [event.choices[0].delta.content async for event in stream] == ["tok "] * 3
        assert [model.id async for model in sdk.models.list()] == ["m"]
        with pytest.raises(openai.NotFoundError) as missing:
            await sdk.chat.completions.create(model="other", messages=message)
        assert missing.value.code == "model_not_found"
        assert missing.value.request_id.startswith("req-")
        r.behave(r.decode, fault=Fault.CUT, fault_after=2, gap_s=0.001, event=json.dumps(CHAT_EVENT).encode())
        stream = await sdk.chat.completions.create(model="m", messages=message, stream=True)
        with pytest.raises(openai.APIError, match="decode instance"):
            async for _ in stream:
                pass
        r.behave(r.decode, fault=Fault.CLOSE)
        with pytest.raises(openai.InternalServerError):
            await sdk.chat.completions.create(model="m", messages=message)
        await sdk.close()
