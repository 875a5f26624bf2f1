"""What the two legs carry, and when they leave."""

import asyncio
import json

import pytest

from router.contract.instance import Mode
from router.contract.wire import DecodeHandoff, PrefillHandoff
from tests.support.routers import BODY, PATH, rig, until
from tests.support.wire import Wire, post

pytestmark = pytest.mark.parametrize("data_path", ["hook", "asgi"])

EVERYTHING = {
    "model": "m",
    "messages": [{"role": "user", "content": "北京🌍"}],
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "max_tokens": 50,
    "max_completion_tokens": 200,
    "min_tokens": 3,
    "n": 1,
    "logprobs": True,
    "top_logprobs": 5,
    "temperature": None,
    "top_k": -1,
    "priority": 7,
    "cache_salt": "s1",
    "chat_template_kwargs": {"enable_thinking": False},
    "return_token_ids": True,
    "x_unknown_future": {"a": [1, None, "é"]},
}


async def test_prefill_gets_one_token_and_decode_the_clients_own_bytes(data_path):
    async with rig(data_path=data_path) as r:
        raw = json.dumps(EVERYTHING, ensure_ascii=False, indent=1).encode() + b"\n"
        answer = await r.client.post("/v1/chat/completions", content=raw)
        assert answer.status_code == 200
        (prefill,), (decode,) = r.prefill.seen, r.decode.seen
        dropped = {"stream_options", "min_tokens", "n", "logprobs", "top_logprobs"}
        kept = {name: value for name, value in EVERYTHING.items() if name not in dropped}
        sent = prefill.fields
        sent.pop("kv_transfer_params")
        assert sent == kept | {"max_tokens": 1, "max_completion_tokens": 1, "stream": False}
        assert decode.body.startswith(raw.rstrip()[:-1] + b',"kv_transfer_params":{')
        assert {k: v for k, v in decode.fields.items() if k != "kv_transfer_params"} == EVERYTHING
        assert prefill.path == decode.path == "/v1/chat/completions"


async def test_without_a_limit_decode_gets_none_and_prefill_one(data_path):
    async with rig(data_path=data_path) as r:
        await r.client.post(PATH, json=BODY)
        assert r.prefill.seen[0].fields["max_tokens"] == 1
        assert "max_completion_tokens" not in r.prefill.seen[0].fields
        assert "max_tokens" not in r.decode.seen[0].fields


async def test_the_legs_meet_under_one_id_of_the_routers_own(data_path):
    async with rig(data_path=data_path) as r:
        answer = await r.client.post(PATH, json=BODY, headers={"X-Request-Id": "bench-0"})
        assert answer.headers["x-request-id"] == "bench-0"
        (prefill,), (decode,) = r.prefill.seen, r.decode.seen
        assert isinstance(prefill.handoff, PrefillHandoff)
        assert isinstance(decode.handoff, DecodeHandoff)
        assert prefill.handoff.transfer_id == decode.handoff.transfer_id
        assert prefill.handoff.transfer_id.startswith("req-") and prefill.handoff.transfer_id.endswith(".1")
        assert prefill.headers["x-request-id"] == decode.headers["x-request-id"] == prefill.handoff.transfer_id
        assert decode.handoff.mode is Mode.PUSH
        assert decode.handoff.prefill_engine_id == r.prefill.instance.kv.engine_id
        for seen in (prefill, decode):
            assert 0 < int(seen.headers["x-request-deadline-ms"]) <= 600_000


async def test_forty_requests_under_one_client_id_have_forty_internal_ids(data_path):
    async with rig(data_path=data_path) as r:
        headers = {"X-Request-Id": "bench-0"}
        answers = await asyncio.gather(*(r.client.post(PATH, json=BODY, headers=headers) for _ in range(20)))
        answers += [
            await r.client.post(PATH, json=BODY | {"request_id": "bench-0"}, headers=headers) for _ in range(20)
        ]
        assert [a.status_code for a in answers] == [200] * 40
        assert {a.headers["x-request-id"] for a in answers} == {"bench-0"}
        assert len({seen.headers["x-request-id"] for seen in r.decode.seen}) == 40
        assert all("request_id" not in seen.fields for seen in r.decode.seen)


async def test_both_legs_leave_together_whatever_prefill_does(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.prefill, delay_s=1.0)
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        assert r.prefill.num_open == 1, "decode's leg left while prefill was still at work"
        await r.come_to_rest()


async def test_pull_waits_for_prefill_and_passes_its_answer_on_unchanged(data_path):
    async with rig(data_path=data_path, mode=Mode.PULL) as r:
        r.behave(r.prefill, delay_s=1.0)
        request = asyncio.create_task(r.client.post(PATH, json=BODY))
        await until(lambda: len(r.prefill.seen) == 1)
        assert r.prefill.num_open == 1 and not r.decode.seen
        assert (await request).status_code == 200
        params = r.decode.seen[0].fields["kv_transfer_params"]
        assert params["remote_block_ids"] == [[0]]
        assert params["do_remote_prefill"] is True
        assert r.decode.seen[0].handoff.mode is Mode.PULL


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 3}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "beam_search"),
        ({"prompt_logprobs": 2}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, "echo_logprobs"),
        ({"prompt": ["a", "b"]}, "several_prompts"),
        ({"prompt": [[1], [2]]}, "several_prompts"),
    ],
)
async def test_what_cannot_be_split_runs_on_decode_alone(data_path, fields, reason):
    async with rig(data_path=data_path) as r:
        body = BODY | fields
        assert (await r.client.post(PATH, json=body)).status_code == 200
        assert not r.prefill.seen
        assert r.decode.seen[0].fields == body
        metrics = (await r.client.get("/metrics")).text
        assert f'tandem_placement_total{{mode="local",reason="{reason}"}} 1.0' in metrics


@pytest.mark.parametrize("fields", [{"echo": True}, {"prompt": ["one"]}, {"prompt": [1, 2, 3]}, {"n": 1}, {"n": None}])
async def test_what_can_be_split_is_split(data_path, fields):
    async with rig(data_path=data_path) as r:
        assert (await r.client.post(PATH, json=BODY | fields)).status_code == 200
        assert len(r.prefill.seen) == len(r.decode.seen) == 1


async def test_a_clients_own_hand_over_never_passes(data_path):
    forged = {"do_remote_prefill": True, "remote_host": "evil", "transfer_id": "stolen"}
    for raw in (
        json.dumps(BODY | {"kv_transfer_params": forged}),
        json.dumps(BODY | {"kv_transfer_params": forged, "n": 2}),
        json.dumps(BODY | {"kv_transfer_params": forged}).replace("kv_transfer", "kv_tran\\u0073fer"),
    ):
        async with rig(data_path=data_path) as r:
            assert (await r.client.post(PATH, content=raw)).status_code == 200
            for seen in (*r.prefill.seen, *r.decode.seen):
                assert b"evil" not in seen.body and b"stolen" not in seen.body


async def test_both_only_fleet_is_not_disaggregated(data_path):
    async with rig(num_prefill=0, num_decode=0, both=2, data_path=data_path) as r:
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        (seen,) = [seen for engine in r.engines for seen in engine.seen]
        assert seen.handoff is None


async def test_trace_context_passes_and_credentials_do_not(data_path):
    async with rig(data_path=data_path) as r:
        headers = {"traceparent": "00-aa-bb-01", "tracestate": "x=1", "Authorization": "Bearer K1", "Cookie": "c"}
        await r.client.post(PATH, json=BODY, headers=headers)
        for seen in (*r.prefill.seen, *r.decode.seen):
            assert seen.headers["traceparent"] == "00-aa-bb-01"
            assert seen.headers["tracestate"] == "x=1"
            assert not {"authorization", "cookie", "accept-encoding", "user-agent"} & seen.headers.keys()


async def test_trace_context_that_is_no_text_is_left_out(data_path):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        raw = post(PATH, BODY, "traceparent: 00-\xe9-01", "tracestate: x=1")
        wire.send(raw.decode().encode("latin-1"))
        assert (await wire.answer()).status == 200
        for seen in (*r.prefill.seen, *r.decode.seen):
            assert "traceparent" not in seen.headers


async def test_a_header_can_only_shorten_the_deadline(data_path):
    async with rig(data_path=data_path, total_s=5.0) as r:
        await r.client.post(PATH, json=BODY, headers={"X-Request-Timeout-Ms": "1200"})
        await r.client.post(PATH, json=BODY, headers={"X-Request-Deadline-Ms": "999999"})
        shortened, kept = (int(seen.headers["x-request-deadline-ms"]) for seen in r.decode.seen)
        assert 0 < shortened <= 1200
        assert 1200 < kept <= 5000
        bad = await r.client.post(PATH, json=BODY, headers={"X-Request-Timeout-Ms": "soon"})
        assert bad.status_code == 400
