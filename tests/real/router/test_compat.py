"""What other routers got wrong about OpenAI's API, case by case; names begin with the case (see tests/README.md)."""

import gzip
import json

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from router.bench.mock_behaviour import Fault
from router.bench.mock_connection import DONE
from tests.support.routers import BODY, PATH, Rig, rig, until
from tests.support.wire import Wire, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {"stream": True}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["hook", "asgi"])
async def site(request):
    async with rig(data_path=request.param, total_s=20.0, attempts=1) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def r(site: Rig):
    """The site as new; the quiet check runs after the test."""
    for engine in site.engines:
        engine.seen.clear()
        engine.taken_back.clear()
        site.behave(engine)
    yield site
    await site.come_to_rest()


def legs(r: Rig) -> tuple[dict, dict]:
    """The fields that each leg carried, less the hand-over."""
    (prefill,), (decode,) = r.prefill.seen, r.decode.seen
    fields = prefill.fields, decode.fields
    for one in fields:
        one.pop("kv_transfer_params")
    return fields


def events(*payloads: dict) -> bytes:
    """Several events as the one that the mock engine sends."""
    return b"\n\ndata: ".join(json.dumps(one, ensure_ascii=False).encode() for one in payloads)


async def counted(r: Rig, family: str) -> dict[tuple[str, ...], float]:
    """Samples of a metric by their outcome and code."""
    text = (await r.client.get("/metrics")).text
    found = [one for one in text_string_to_metric_families(text) if one.name == family]
    samples = found[0].samples if found else []
    totals: dict[tuple[str, ...], float] = {}
    for one in samples:
        key = one.labels.get("outcome", ""), one.labels.get("code", "")
        totals[key] = totals.get(key, 0.0) + one.value
    return totals


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT_PATH, {"max_completion_tokens": 200}),
        (CHAT_PATH, {"max_tokens": 50, "max_completion_tokens": 200}),
        (CHAT_PATH, {}),
        (PATH, {"max_tokens": 200}),
        (CHAT_PATH, {"max_tokens": 1}),
        (CHAT_PATH, {"max_tokens": 0}),
        (CHAT_PATH, {"max_tokens": -1}),
        (CHAT_PATH, {"max_tokens": "5"}),
        (CHAT_PATH, {"max_tokens": None, "max_completion_tokens": None}),
    ],
)
async def test_a2_o14_prefill_computes_one_token_and_decode_gets_the_clients_limits(r, path, fields):
    body = (CHAT if path == CHAT_PATH else BODY) | fields
    assert (await r.client.post(path, json=body)).status_code == 200
    prefill, decode = legs(r)
    assert decode == body
    limits = {name: value for name, value in prefill.items() if name.startswith("max_")}
    assert limits == {"max_tokens": 1} | ({"max_completion_tokens": 1} if "max_completion_tokens" in fields else {})


TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAME_ON_BOTH_LEGS = {
    "o10 null content": {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "4"},
        ]
    },
    "o8 tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto"},
    "o12 guided": {"guided_json": {"type": "object"}, "structured_outputs": {"regex": "[ab]+"}},
    "o18 bookkeeping": {
        "suffix": "x",
        "user": "u",
        "metadata": {f"k{n}": "secret value" for n in range(16)},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
    },
    "o19 nested and null": {
        "x": {"y": [{"z": None}]},
        "temperature": None,
        "big": 2**70,
        "float": 1.5,
    },
    "o22 parts": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is it?"},
                    {"type": "image_url", "image_url": {"url": "https://nowhere.example/a.png"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200_000}},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                ],
            }
        ]
    },
    "o23 roles": {
        "messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "name": "ann", "content": "a"}]
    },
    "o23 nothing": {"messages": []},
    "template": {"chat_template": "{{x}}", "add_generation_prompt": False, "continue_final_message": True},
    "cache": {"cache_salt": "s", "priority": -3, "mm_processor_kwargs": {"a": 1}, "reasoning_effort": "low"},
    "sampling": {"top_p": 0.5, "seed": 7, "logit_bias": {"5": -100}, "stop": ["a", "b"], "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("fields", SAME_ON_BOTH_LEGS.values(), ids=SAME_ON_BOTH_LEGS)
async def test_a4_both_legs_carry_what_the_client_sent(r, fields):
    body = CHAT | fields
    assert (await r.client.post(CHAT_PATH, json=body)).status_code == 200
    prefill, decode = legs(r)
    assert decode == body
    assert prefill == body | {"max_tokens": 1, "stream": False}


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": True, "top_logprobs": 5}, USAGE], ids=["plain", "logprobs", "usage"]
)
async def test_a6_events_arrive_one_by_one(r, fields):
    r.behave(r.decode, num_events=4, gap_s=0.05)
    still_open = []
    async with r.client.stream("POST", CHAT_PATH, json=CHAT | STREAM | fields) as answer:
        async for piece in answer.aiter_raw():
            still_open += [r.decode.num_open] * piece.count(b"data: {")
    assert still_open[:3] == [1, 1, 1], "the engine had not ended when its event arrived"


ZIPPED = gzip.compress(b'data: {"choices":[{"index":0,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("piece_bytes", [0, 9])
async def test_a7_h10_a_compressed_answer_keeps_its_bytes_and_its_label(r, kind, piece_bytes):
    headers = (
        (b"Content-Encoding", b"gzip"),
        (b"Content-Type", kind.encode()),
        (b"Connection", b"x-a"),
        (b"x-a", b"1"),
    )
    r.behave(r.decode, answer=ZIPPED, headers=headers, piece_bytes=piece_bytes)
    wire = await Wire.to(r.port)
    wire.send(post(PATH, BODY, "Accept-Encoding: gzip"))
    answer = await wire.answer()
    assert (answer.status, answer.headers["content-encoding"], answer.body) == (200, "gzip", ZIPPED)
    assert "x-a" not in answer.headers and answer.keep_alive
    assert all("accept-encoding" not in seen.headers for seen in (*r.prefill.seen, *r.decode.seen))


async def test_a7_a_compressed_stream_that_breaks_is_cut_and_not_spoilt_by_an_event_of_ours(r):
    headers = ((b"Content-Encoding", b"gzip"), (b"Content-Type", b"text/event-stream"))
    r.behave(
        r.decode, event=b"\x1f\x8b" * 4000, headers=headers, num_events=9, gap_s=0.001, fault=Fault.CUT, fault_after=3
    )
    wire = await Wire.to(r.port)
    wire.send(post(PATH, BODY | STREAM))
    raw = await wire.rest()
    assert raw.startswith(b"HTTP/1.1 200") and b"error" not in raw and not raw.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("path", [CHAT_PATH, PATH])
@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, None])
async def test_a11_o1_usage_comes_when_it_was_asked_for_and_only_then(r, path, options):
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
    token = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]}
    asked = options == {"include_usage": True}
    event = events(token, token, usage) if asked else events(token, token)
    r.behave(r.decode, event=event, num_events=1)
    body = (CHAT if path == CHAT_PATH else BODY) | STREAM | ({"stream_options": options} if options else {})
    answer = await r.client.post(path, json=body)
    assert answer.content == b"data: %b\n\n" % event + DONE
    prefill, decode = legs(r)
    assert decode == body, "nothing was added to learn the usage"
    assert "stream_options" not in prefill


async def test_o2_running_usage_is_not_added_up(r):
    ticks = [{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in (1, 2, 3)]
    before = await total(r, "tandem_completion_tokens_total")
    r.behave(r.decode, event=events(*ticks), num_events=1)
    await r.client.post(CHAT_PATH, json=CHAT | STREAM | USAGE)
    assert await total(r, "tandem_completion_tokens_total") - before in (0.0, 3.0)


async def total(r: Rig, name: str) -> float:
    text = (await r.client.get("/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


async def test_a21_a_finish_reason_of_error_passes_and_counts_as_failed(r):
    failed = ("failed", "engine_error")
    before = (await counted(r, "tandem_requests")).get(failed, 0.0)
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}
    begun = events({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}, end)
    r.behave(r.decode, event=begun, num_events=1)
    streamed = await r.client.post(CHAT_PATH, json=CHAT | STREAM | USAGE)
    assert streamed.content == b"data: %b\n\n" % begun + DONE
    whole = json.dumps({"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "error"}]}).encode()
    r.behave(r.decode, answer=whole)
    assert (await r.client.post(CHAT_PATH, json=CHAT)).content == whole
    assert (await counted(r, "tandem_requests"))[failed] == before + 2


async def test_o3_o8_o24_deltas_pass_unmerged_and_unchanged(r):
    def chunk(delta: dict, finish: str | None = None) -> dict:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "chatcmpl-d", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    sent = [
        chunk({"role": "assistant", "content": None, "reasoning_content": "hm"}),
        chunk({"reasoning": "so"}),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        chunk({}, "tool_calls"),
    ]
    r.behave(r.decode, event=events(*sent), num_events=1, piece_bytes=7)
    answer = await r.client.post(CHAT_PATH, json=CHAT | STREAM)
    assert [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]] == sent


@pytest.mark.parametrize("odd", ["true", 1, None, [True]])
async def test_s10_s11_what_streams_is_the_engines_word(r, odd):
    answer = await r.client.post(PATH, json=BODY | {"stream": odd})
    assert (answer.headers["content-type"], answer.content) == ("application/json", r.decode.behaviour.answer)
    assert r.decode.seen[0].fields["stream"] == odd and r.prefill.seen[0].fields["stream"] is False


async def test_s1_s2_framing_is_the_engines_and_done_comes_once(r):
    answer = await r.client.post(PATH, json=BODY | STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers and b"\r" not in answer.content
    assert answer.content.count(b"[DONE]") == 1 and answer.content.endswith(b"data: [DONE]\n\n")
    finished = events({"choices": [{"index": 0, "finish_reason": "stop"}]})
    r.behave(r.decode, event=finished, num_events=1, fault=Fault.NO_END, fault_after=1)
    answer = await r.client.post(PATH, json=BODY | STREAM)
    assert answer.content == b"data: %b\n\n" % finished, "a stream that has finished without it gets none from us"


async def test_h11_two_request_ids_and_a_long_one(r):
    answer = await r.client.post(PATH, json=BODY, headers={"X-Request-Id": "x" * 300})
    assert answer.headers["x-request-id"].startswith("req-")
    wire = await Wire.to(r.port)
    wire.send(post(PATH, BODY, "X-Request-Id: one", "X-Request-Id: two"))
    raw = await wire.reader.readuntil(b"\r\n\r\n")
    assert raw.lower().count(b"x-request-id:") == 1
    for seen in (*r.prefill.seen, *r.decode.seen):
        assert seen.headers["x-request-id"].startswith("req-")


async def test_h17_legs_name_their_own_host_and_carry_no_headers_of_the_clients_connection(r):
    headers = {
        "Host": "evil.example",
        "Connection": "x-hop",
        "X-Hop": "1",
        "X-Forwarded-For": "1.2.3.4",
        "TE": "trailers",
    }
    wire = await Wire.to(r.port)
    wire.send(post(PATH, BODY, *(f"{name}: {value}" for name, value in headers.items() if name != "Host")))
    assert (await wire.answer()).status == 200
    for engine in r.engines:
        (seen,) = engine.seen
        assert seen.headers["host"] == engine.url.removeprefix("http://")
        assert not {"x-hop", "x-forwarded-for", "te", "connection"} & seen.headers.keys()


@pytest.mark.parametrize(
    "path", ["/sleep", "/collective_rpc", "/update_weights", "/flush_cache", "/kv/peer", "/kv/cancel"]
)
async def test_m5_engines_own_paths_are_not_offered(r, path):
    for method in ("GET", "POST"):
        answer = await r.client.request(method, path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert not r.prefill.seen and not r.decode.seen


async def test_m3_probes_of_benchmarks_are_answered_before_any_load(r):
    assert (await r.client.get("/health")).status_code == 200
    listed = (await r.client.get("/v1/models")).json()
    assert [(model["id"], model["max_model_len"]) for model in listed["data"]] == [("m", 4096)]


async def test_x3_refusals_that_no_retry_can_cure_have_codes_that_no_client_retries(r):
    retried = {408, 409, 429, *range(500, 600)}
    answers = [
        await r.client.post(PATH, content=b"{"),
        await r.client.post(PATH, json=BODY | {"model": "x"}),
        await r.client.post(PATH, content=b"x" * 17_000_000),
        await r.client.post(PATH, json=BODY, headers={"Content-Encoding": "gzip"}),
        await r.client.get(PATH),
    ]
    assert [answer.status_code for answer in answers] == [400, 404, 413, 415, 405]
    assert not retried & {answer.status_code for answer in answers}
    assert all(set(answer.json()["error"]) == {"message", "type", "param", "code"} for answer in answers)


async def test_x10_a_client_that_leaves_is_no_failure_of_ours(r):
    before = await counted(r, "tandem_requests")
    r.behave(r.decode, fault=Fault.HANG)
    wire = await Wire.to(r.port)
    wire.send(post(PATH, BODY))
    await until(lambda: r.decode.num_open == 1)
    wire.cut()
    await r.come_to_rest()
    after = await counted(r, "tandem_requests")
    key = ("abandoned", "client_gone")
    assert after[key] == before.get(key, 0.0) + 1
    assert {k: v for k, v in after.items() if k != key} == {k: v for k, v in before.items() if k != key}
