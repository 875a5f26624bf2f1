"""What a running router tells of its requests: metrics as its table lists them, records, the Story."""

import asyncio
import re
from importlib.resources import files

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.bench.mock_behaviour import Fault
from tests.support.collector import collecting
from tests.support.routers import BODY, PATH, rig

ROW = re.compile(r"^\| `(tandem_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
TIMING = ((b"server-timing", b"seats;dur=1, kv;dur=2"),)
ON_DEMAND = ("tandem_workers", "tandem_traces_total")
STREAM = BODY | {"stream": True}
CHAT = "/v1/chat/completions"
MESSAGES = {"model": "m", "messages": [{"role": "user", "content": "a secret word"}], "stream": True}


def table() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of each documented metric, by its name."""
    text = files("router.observe").joinpath("README.md").read_text("utf-8")
    return {
        name: (kind, frozenset(labels.replace(" ", "").split(",")) - {""}) for name, kind, labels in ROW.findall(text)
    }


def told(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """The same of what was scraped."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + "_total" * (family.type == "counter")
        labels = frozenset().union(*(sample.labels for sample in family.samples)) - {"le"}
        found[name] = (family.type, labels)
    return found


@pytest.mark.needs("redis")
async def test_every_metric_of_the_table_is_told_and_no_other(redis_url, namespace):
    async with rig(num_prefill=2, store=redis_url, namespace=namespace) as r:
        for engine in r.engines:
            r.behave(engine, headers=TIMING, gap_s=0.001)
        assert (await r.client.post(PATH, json=STREAM)).status_code == 200
        assert (await r.client.post(PATH, json=BODY | {"n": 2})).status_code == 200
        r.behave(r.prefill, fault=Fault.CLOSE, times=1)
        r.behave(r.prefills[1], fault=Fault.CLOSE, times=1)
        await r.client.post(PATH, json=BODY)
        r.behave(r.decode, fault=Fault.HANG)
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.1):
                await r.client.post(PATH, json=STREAM)
        await r.come_to_rest()
        scraped = told((await r.client.get("/metrics")).text)
    documented = table()
    assert documented, "the table is read"
    assert {name: kind for name, (kind, _) in scraped.items()} == {
        name: kind for name, (kind, _) in documented.items() if name not in ON_DEMAND
    }
    # What has not happened has no samples, hence no labels to compare.
    assert {name: labels for name, (_, labels) in scraped.items() if labels} == {
        name: labels for name, (_, labels) in documented.items() if scraped.get(name, ("", ()))[1]
    }


async def test_a_role_is_no_first_token():
    """O24: time to the first token ends with the first delta that says something, of whatever kind."""
    async with rig() as r:
        event = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
        r.behave(r.decode, event=event, num_events=3, gap_s=0.001)
        assert (await r.client.post(CHAT, json=MESSAGES)).status_code == 200
        (nothing_said,) = (await r.client.get("/admin/requests")).json()["requests"]
        assert nothing_said["outcome"] == "served"
        assert (nothing_said["content_s"], nothing_said["num_events"]) == (0.0, 0)
        assert "tandem_ttft_seconds_count" not in (await r.client.get("/metrics")).text
        r.behave(r.decode, event=b'{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}', num_events=3)
        answer = await r.client.post(CHAT, json=MESSAGES)
        assert answer.text.count('"reasoning_content":"hm"') == 3, "passed on unchanged"
        thought = (await r.client.get("/admin/requests")).json()["requests"][0]
        assert 0 < thought["first_byte_s"] <= thought["content_s"] <= thought["ended_s"]
        assert thought["num_events"] == 3
        assert 'tandem_ttft_seconds_count{endpoint="/v1/chat/completions"' in (await r.client.get("/metrics")).text


async def test_an_answer_with_the_finish_reason_error_is_passed_on_and_counts_as_failed():
    """A21; but a stream that begins with it has answered nothing, and can still fail as such."""
    async with rig(attempts=1) as r:
        plain = b'{"choices":[{"index":0,"text":"","finish_reason":"error"}]}'
        begun = b'{"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\ndata: ' + plain
        r.behave(r.decode, event=plain, num_events=1)
        assert (refused := await r.client.post(PATH, json=STREAM)).status_code == 502
        assert refused.json()["error"]["code"] == "engine_error"
        r.behave(r.decode, answer=plain, event=begun, num_events=1)
        assert (await r.client.post(PATH, json=BODY)).content == plain
        streamed = await r.client.post(PATH, json=STREAM | {"stream_options": {"include_usage": True}})
        assert streamed.content == b"data: " + begun + b"\n\ndata: [DONE]\n\n"
        text = (await r.client.get("/metrics")).text
        assert "tandem_e2e_seconds_count" not in text and "tandem_ttft_seconds_count" not in text
        records = (await r.client.get("/admin/requests", params={"failed": True})).json()["requests"]
        assert [(one["outcome"], one["code"]) for one in records] == [("failed", "engine_error")] * 3


async def test_continuous_usage_is_not_added_up():
    """O2: the newest usage counts, and the client sees each."""
    async with rig() as r:
        event = b'{"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":5,"completion_tokens":9}}'
        r.behave(r.decode, event=event, num_events=4, gap_s=0.001)
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await r.client.post(PATH, json=STREAM | {"stream_options": options})
        assert answer.text.count('"completion_tokens":9') == 4
        (record,) = (await r.client.get("/admin/requests")).json()["requests"]
        assert (record["prompt_tokens"], record["completion_tokens"]) == (5, 9)
        assert "stream_options" not in r.prefill.seen[0].fields
        text = (await r.client.get("/metrics")).text
        assert 'tandem_completion_tokens_total{model="m",source="usage"} 9.0' in text


async def test_what_shims_time_for_the_router_is_not_the_clients():
    async with rig() as r:
        r.behave(r.decode, headers=TIMING)
        for body in (BODY, STREAM):
            assert "server-timing" not in (await r.client.post(PATH, json=body)).headers
        (record, _) = (await r.client.get("/admin/requests")).json()["requests"]
        assert (record["seats_s"], record["kv_s"]) == (0.001, 0.002)


@pytest.mark.needs("redis")
async def test_one_request_is_shown_with_its_story(redis_url, namespace):
    async with rig(store=redis_url, namespace=namespace) as r:
        answer = await r.client.post(PATH, json=STREAM, headers={"x-request-id": "mine-1"})
        await r.come_to_rest()
        shown = (await r.client.get("/admin/requests")).json()["requests"][0]
        assert answer.headers["x-request-id"] == shown["client_id"] == "mine-1"
        await r.parts.ledger.flush()
        for name in ("mine-1", shown["request_id"], shown["request_id"] + ".1"):
            one = (await r.client.get(f"/admin/requests/{name}")).json()
            assert (one["record"] or shown)["request_id"] == shown["request_id"]
            assert [line["stage"] for line in one["story"]] == ["opened", "served"]
            assert one["degraded"] is False
        missing = await r.client.get("/admin/requests/req-nobody")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


async def test_a_request_is_shown_while_the_store_is_away():
    async with rig(store="redis://127.0.0.1:1/0") as r:
        await r.client.post(PATH, json=BODY)
        (shown,) = (await r.client.get("/admin/requests")).json()["requests"]
        one = (await r.client.get(f"/admin/requests/{shown['request_id']}")).json()
        assert (one["record"], one["story"], one["degraded"]) == (shown, [], True)


async def test_no_prompt_is_in_anything_that_is_told():
    async with rig() as r:
        await r.client.post(CHAT, json=MESSAGES, headers={"authorization": "Bearer a-secret-key"})
        for path in ("/metrics", "/admin/requests", "/admin/fleet"):
            text = (await r.client.get(path)).text
            assert "secret" not in text, path


@pytest.mark.needs("otel")
async def test_a_traced_request_is_one_trace_with_both_legs_below_it():
    """H12: both legs continue the client's trace as two spans of their own, with its state and its baggage."""
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{span}-01", "tracestate": "a=1,b=2", "baggage": "user=7"}
    with collecting() as collector:
        async with rig(otlp=collector.url, trace_share=0.0) as r:
            r.behave(r.prefill, delay_s=0.01)
            r.behave(r.decode, delay_s=0.02, gap_s=0.001, headers=TIMING)
            assert (await r.client.post(PATH, json=STREAM)).status_code == 200
            assert "traceparent" not in r.prefill.seen[0].headers, "nobody has asked for a trace"
            assert (await r.client.post(PATH, json=STREAM, headers=headers)).status_code == 200
            legs = [engine.seen[1].headers for engine in (r.prefill, r.decode)]
            record = (await r.client.get("/admin/requests")).json()["requests"][0]
        # The router has ended, and with it the last export.
        assert record["trace_id"] == trace and record["parent_id"] == span
        for leg, name in zip(legs, ("prefill leg", "decode leg"), strict=True):
            assert (leg["tracestate"], leg["baggage"]) == ("a=1,b=2", "user=7")
            assert leg["traceparent"] == f"00-{trace}-{collector.named(name).span_id.hex()}-01"
        root = collector.named(f"POST {PATH}")
        assert root.parent_span_id.hex() == span
        names = {one.name for one in collector.spans}
        assert names == {root.name, "door", "place", "prefill leg", "decode leg", "rendezvous", "transfer", "relay"}
        assert {one.parent_span_id for one in collector.spans if one is not root} == {root.span_id}
        assert len({one.span_id for one in collector.spans}) == len(collector.spans)
        events = [event.name for event in collector.named("decode leg").events]
        assert events == ["registered", "rendezvous", "kv_whole", "first_token"]


@pytest.mark.needs("otel")
async def test_a_collector_that_is_away_harms_no_request():
    async with rig(otlp="http://127.0.0.1:1", trace_share=1.0) as r:
        for _ in range(3):
            assert (await r.client.post(PATH, json=STREAM)).status_code == 200
        own = r.prefill.seen[0].headers["traceparent"].split("-")[1]
        assert (await r.client.get("/admin/requests")).json()["requests"][-1]["request_id"] == f"req-{own}"


async def test_what_a_client_calls_its_model_is_kept_in_part():
    async with rig() as r:
        assert (await r.client.post(PATH, json=BODY | {"model": "x" * 100_000})).status_code == 404
        (record,) = (await r.client.get("/admin/requests")).json()["requests"]
        assert record["model"] == "x" * 256
