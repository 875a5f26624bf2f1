"""First failure wins, is told honestly, and leaves nothing behind."""

import asyncio
import json

import pytest

from router.bench.mock_behaviour import Behaviour, Fault
from router.contract.instance import Mode
from tests.support.routers import BODY, PATH, rig, until

pytestmark = pytest.mark.parametrize("data_path", ["hook", "asgi"])

STREAM = BODY | {"stream": True}
REFUSAL = b'{"error":{"message":"stop_token_ids must be ints","type":"BadRequestError","param":"s","code":400}}'
BOOM = b'{"error":{"message":"boom","type":"server_error","param":null,"code":"engine_down"}}'
FLAT = b'{"object":"error","message":"old style","code":422}'


def code_of(answer) -> str:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["content-type"] == "application/json"
    assert "x-request-id" in answer.headers
    return error["code"]


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(("status", "body"), [(400, REFUSAL), (422, FLAT), (404, b"nope"), (413, b"")])
async def test_an_engines_4xx_is_the_answer_byte_for_byte(data_path, side, status, body):
    async with rig(data_path=data_path) as r:
        refusing = getattr(r, side)
        r.behave(r.decode if side == "prefill" else r.prefill, delay_s=5.0)
        r.behave(refusing, fault=Fault.REFUSE, status=status, error_body=body)
        answer = await r.client.post(PATH, json=STREAM)
        assert (answer.status_code, answer.content) == (status, body)
        assert answer.headers["content-type"] == "application/json"
        await r.come_to_rest()
        assert len(r.prefill.seen) == len(r.decode.seen) == 1, "no retry"
        other = (r.decode if side == "prefill" else r.prefill).seen[0]
        assert other.aborted, "the other leg was stopped"
        assert 'outcome="refused"' in (await r.client.get("/metrics")).text


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Fault.CLOSE, 502, "leg_broken"),
        (Fault.GARBAGE, 502, "leg_broken"),
        (Fault.EMPTY, 502, None),
        (Fault.REFUSE, 502, "mock"),
        (Fault.CUT, 502, "leg_broken"),
    ],
)
async def test_a_broken_leg_is_no_200(data_path, side, stream, fault, status, code):
    async with rig(data_path=data_path) as r:
        if side == "prefill":
            r.behave(r.decode, delay_s=5.0)
        r.behave(getattr(r, side), fault=fault)
        answer = await r.client.post(PATH, json=BODY | {"stream": stream})
        assert answer.status_code == status
        assert code is None or code_of(answer) == code
        await r.come_to_rest()
        assert 'outcome="failed"' in (await r.client.get("/metrics")).text


async def test_a_503_envelope_of_the_engine_keeps_its_body_and_retry_after(data_path):
    body = b'{"error":{"message":"full","type":"server_error","param":null,"code":"no_seats"}}'
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, fault=Fault.REFUSE, status=503, error_body=body, headers=((b"Retry-After", b"7"),))
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, answer.content) == (503, body)
        assert answer.headers["retry-after"] == "7"


async def test_a_retry_takes_other_instances_under_a_fresh_id(data_path):
    async with rig(num_prefill=2, num_decode=2, data_path=data_path) as r:
        for side in ("prefills", "decodes"):
            for engine in getattr(r, side):
                r.behave(engine)
        broken = r.decodes[0]
        r.behave(broken, fault=Fault.CLOSE)
        for _ in range(6):
            answer = await r.client.post(PATH, json=STREAM)
            assert answer.status_code == 200
            await r.come_to_rest()
        assert broken.seen, "it was tried"
        for failed in broken.seen:
            base = failed.headers["x-request-id"].removesuffix(".1")
            (again,) = [s for s in r.decodes[1].seen if s.headers["x-request-id"] == f"{base}.2"]
            assert again.body != failed.body
            attempts = [
                s.headers["x-request-id"] for p in r.prefills for s in p.seen if base in s.headers["x-request-id"]
            ]
            assert sorted(attempts) == [f"{base}.1", f"{base}.2"]
        # A leg whose kept-alive connection closes in its face is sent once more under the same id.
        failed_attempts = {failed.headers["x-request-id"] for failed in broken.seen}
        retried = f'tandem_retries_total{{reason="leg_broken"}} {float(len(failed_attempts))}'
        assert retried in (await r.client.get("/metrics")).text


async def test_at_most_the_configured_attempts_are_made(data_path):
    async with rig(num_decode=4, data_path=data_path, attempts=3) as r:
        for engine in r.decodes:
            r.behave(engine, fault=Fault.CLOSE)
        answer = await r.client.post(PATH, json=BODY)
        assert code_of(answer) == "leg_broken"
        assert sum(len(engine.seen) for engine in r.decodes) == 3


async def test_a_busy_429_is_tried_elsewhere_once_then_passed_on(data_path):
    async with rig(num_decode=2, data_path=data_path) as r:
        for engine in r.decodes:
            r.behave(engine, fault=Fault.REFUSE, status=429, error_body=b"{}", headers=((b"Retry-After", b"3"),))
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (429, b"{}", "3")
        assert [len(engine.seen) for engine in r.decodes] == [1, 1]


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.NO_END])
async def test_a_stream_that_breaks_ends_with_an_error_event_and_no_done(data_path, fault):
    async with rig(num_decode=2, data_path=data_path) as r:
        for engine in r.decodes:
            r.behave(engine, fault=fault, fault_after=3, gap_s=0.001, num_events=9)
        answer = await r.client.post(PATH, json=STREAM)
        assert answer.status_code == 200
        events = [line for line in answer.text.split("\n\n") if line]
        assert len(events) == 4
        assert json.loads(events[3].removeprefix("data: "))["error"]["code"] == "leg_broken"
        assert "[DONE]" not in answer.text
        assert sum(len(engine.seen) for engine in r.decodes) == 1, "nothing is retried after the first byte"
        await r.come_to_rest()
        assert 'outcome="failed"' in (await r.client.get("/metrics")).text


async def test_an_engines_own_error_event_passes_and_counts_as_failed(data_path):
    async with rig(data_path=data_path) as r:
        token = Behaviour().event
        r.behave(r.decode, event=token + b"\n\ndata: " + BOOM, num_events=1, fault=Fault.NO_END, fault_after=1)
        answer = await r.client.post(PATH, json=STREAM)
        assert answer.content == b"data: %b\n\ndata: %b\n\n" % (token, BOOM)
        assert 'code="engine_error"' in (await r.client.get("/metrics")).text


async def test_an_error_before_the_first_token_is_tried_elsewhere_and_then_a_status(data_path):
    async with rig(num_decode=2, data_path=data_path) as r:
        for engine in r.decodes:
            r.behave(engine, event=BOOM, num_events=1, fault=Fault.NO_END, fault_after=1)
        answer = await r.client.post(PATH, json=STREAM)
        assert (answer.status_code, code_of(answer)) == (503, "engine_down")
        assert [len(engine.seen) for engine in r.decodes] == [1, 1]
        await r.come_to_rest()
        r.behave(r.decodes[0])
        r.behave(r.decodes[1])
        assert (await r.client.post(PATH, json=STREAM)).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_does_not_take_our_key_is_not_the_clients_fault(data_path, side, stream):
    async with rig(num_prefill=2, num_decode=2, data_path=data_path, breaker_failures=1) as r:
        wrong = (r.prefills if side == "prefill" else r.decodes)[0]
        for engine in r.prefills if side == "prefill" else r.decodes:
            r.behave(engine, fault=Fault.REFUSE, status=401, error_body=REFUSAL)
        answer = await r.client.post(PATH, json=BODY | {"stream": stream})
        assert (answer.status_code, code_of(answer)) == (502, "engine_unauthorized")
        assert "www-authenticate" not in answer.headers
        assert r.parts.router.health.state_of(wrong.instance.instance_id) == "open"


async def test_a_prefill_that_nobody_fetches_is_taken_back(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, delay_s=0.05, fault=Fault.REFUSE, status=400, error_body=REFUSAL)
        assert (await r.client.post(PATH, json=BODY)).status_code == 400
        await until(lambda: r.prefill.taken_back == [r.prefill.seen[0].headers["x-request-id"]])
        r.behave(r.decode)
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        await r.come_to_rest()
        assert len(r.prefill.taken_back) == 1, "one that was fetched is not"


async def test_prefill_without_a_hand_over_fails_at_once(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, fault=Fault.HANG)
        r.behave(r.prefill, fault=Fault.NO_HAND_OVER)
        answer = await r.client.post(PATH, json=STREAM)
        assert (answer.status_code, code_of(answer)) == (502, "transfer_failed")
        await r.come_to_rest()


async def test_a_prefill_that_was_restarted_is_noticed(data_path):
    async with rig(data_path=data_path, fleet_poll_s=30.0) as r:
        r.behave(r.decode, fault=Fault.HANG)
        r.prefill.epoch = 2
        answer = await r.client.post(PATH, json=STREAM)
        assert (answer.status_code, code_of(answer)) == (502, "peer_gone")
        await r.come_to_rest()


async def test_prefill_failing_after_decode_streams_harms_nobody(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.prefill, delay_s=0.3, fault=Fault.CLOSE)
        r.behave(r.decode, num_events=20, gap_s=0.05)
        answer = await r.client.post(PATH, json=STREAM)
        assert answer.text.endswith("data: [DONE]\n\n")
        await r.come_to_rest()


async def test_a_prefill_that_outlives_its_answer_is_left_to_finish(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.prefill, delay_s=1.0)
        answer = await r.client.post(PATH, json=BODY)
        assert answer.status_code == 200
        assert r.prefill.num_open == 1
        await r.come_to_rest()
        assert not r.prefill.seen[0].aborted


@pytest.mark.parametrize(
    ("side", "limits", "stream", "code"),
    [
        ("prefill", {"prefill_s": 0.2}, True, "prefill_timeout"),
        ("prefill", {"prefill_s": 0.2}, False, "prefill_timeout"),
        ("decode", {"first_token_s": 0.2}, True, "first_token_timeout"),
        ("decode", {"answer_s": 0.2, "answer_token_s": 0.0}, False, "answer_timeout"),
        ("decode", {"total_s": 0.3}, False, "deadline_exceeded"),
        ("prefill", {"total_s": 0.3}, True, "deadline_exceeded"),
    ],
)
async def test_each_phase_has_its_own_deadline(data_path, side, limits, stream, code):
    async with rig(data_path=data_path, attempts=1, **limits) as r:
        r.behave(r.decode, fault=Fault.HANG)
        if side == "prefill":
            r.behave(r.prefill, fault=Fault.HANG)
        answer = await r.client.post(PATH, json=BODY | {"stream": stream})
        assert (answer.status_code, code_of(answer)) == (504, code)
        await r.come_to_rest()


async def test_an_answer_that_does_not_come_is_tried_elsewhere_and_held_against_its_instance(data_path):
    limits = {"answer_s": 0.1, "answer_token_s": 0.02, "breaker_failures": 1, "breaker_open_s": 30.0}
    async with rig(data_path=data_path, num_decode=2, decode_policy="round_robin", **limits) as r:
        hangs = r.decodes[0]
        r.behave(hangs, fault=Fault.HANG)
        answers = [await r.client.post(PATH, json=BODY | {"max_tokens": 5}) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert len(hangs.seen) == 1
        assert r.parts.router.health.state_of(hangs.instance.instance_id) == "open"
        await r.come_to_rest()


async def test_silence_between_tokens_ends_the_stream_with_an_error(data_path):
    async with rig(data_path=data_path, next_token_s=0.2) as r:
        r.behave(r.decode, fault=Fault.STALL, fault_after=2, gap_s=0.001)
        answer = await r.client.post(PATH, json=STREAM)
        assert json.loads(answer.text.split("data: ")[-1])["error"]["code"] == "next_token_timeout"
        await r.come_to_rest()


async def test_a_local_request_has_prefills_time_too(data_path):
    async with rig(data_path=data_path, mode=Mode.LOCAL, prefill_s=3.0, first_token_s=0.3) as r:
        r.behave(r.decode, delay_s=0.6)
        assert (await r.client.post(PATH, json=STREAM)).status_code == 200


async def test_the_total_after_the_first_byte_ends_the_stream(data_path):
    async with rig(data_path=data_path, total_s=0.4) as r:
        r.behave(r.decode, num_events=1000, gap_s=0.02)
        answer = await r.client.post(PATH, json=STREAM)
        assert json.loads(answer.text.split("data: ")[-1])["error"]["code"] == "deadline_exceeded"
        await r.come_to_rest()


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_a_closed_port_is_an_unreachable_leg(data_path, side):
    async with rig(data_path=data_path, fleet_poll_s=30.0) as r:
        await getattr(r, side).stop()
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, code_of(answer), answer.headers["retry-after"]) == (503, f"{side}_unreachable", "1")
        await r.come_to_rest()


async def test_a_json_answer_cut_after_the_router_has_begun_cuts_the_connection(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, answer=b"x" * 8_000_000, fault=Fault.CUT)
        with pytest.raises(Exception, match=r"peer closed connection|incomplete"):
            await r.client.post(PATH, json=BODY)
        await r.come_to_rest()


async def test_prefill_that_must_not_be_cancelled_is_not(data_path):
    async with rig(data_path=data_path, prefill_cancel="never") as r:
        r.behave(r.prefill, delay_s=1.0)
        r.behave(r.decode, fault=Fault.REFUSE, status=400, error_body=REFUSAL)
        answer = await r.client.post(PATH, json=BODY)
        assert answer.status_code == 400
        assert r.prefill.num_open == 1
        await r.come_to_rest()
        assert not r.prefill.seen[0].aborted


async def test_overload_is_refused_at_once_and_sends_no_leg(data_path):
    async with rig(data_path=data_path, max_requests=2) as r:
        r.behave(r.prefill, fault=Fault.HANG)
        r.behave(r.decode, fault=Fault.HANG)
        held = [asyncio.create_task(r.client.post(PATH, json=BODY)) for _ in range(2)]
        await until(lambda: len(r.decode.seen) == 2)
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, code_of(answer), answer.headers["retry-after"]) == (503, "overloaded", "1")
        assert len(r.decode.seen) == 2
        for request in held:
            request.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await r.come_to_rest()


async def test_who_waits_for_admission_is_served_in_turn_and_may_leave(data_path):
    async with rig(data_path=data_path, max_requests=1, queue_requests=2) as r:
        r.behave(r.decode, fault=Fault.HANG, times=1)
        held = asyncio.create_task(r.client.post(PATH, json=BODY))
        await until(lambda: len(r.decode.seen) == 1)
        leaves, waits = (asyncio.create_task(r.client.post(PATH, json=BODY)) for _ in range(2))
        await until(lambda: r.parts.router.admission.waiting == 2)
        assert (await r.client.post(PATH, json=BODY)).json()["error"]["code"] == "overloaded"
        leaves.cancel()
        await until(lambda: r.parts.router.admission.waiting == 1)
        held.cancel()
        assert (await waits).status_code == 200
        await asyncio.gather(held, leaves, return_exceptions=True)
        await r.come_to_rest()
        assert len(r.decode.seen) == 2, "who left in the line has sent no leg"


async def test_who_waits_for_too_long_is_told_to_come_again(data_path):
    async with rig(data_path=data_path, max_requests=1, queue_requests=2, queue_s=0.1) as r:
        r.behave(r.decode, fault=Fault.HANG)
        held = asyncio.create_task(r.client.post(PATH, json=BODY))
        await until(lambda: len(r.decode.seen) == 1)
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, code_of(answer), answer.headers["retry-after"]) == (503, "queue_timeout", "1")
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await r.come_to_rest()


@pytest.mark.parametrize(
    ("header", "side", "code"),
    [
        ("X-Prefill-Timeout-Ms", "prefill", "prefill_timeout"),
        ("X-First-Token-Timeout-Ms", "decode", "first_token_timeout"),
        ("X-Answer-Timeout-Ms", "decode", "answer_timeout"),
        ("X-Request-Timeout-Ms", "decode", "deadline_exceeded"),
    ],
)
async def test_x7_a_client_may_shorten_each_phase(data_path, header, side, code):
    async with rig(data_path=data_path, attempts=1) as r:
        r.behave(r.decode, fault=Fault.HANG)
        r.behave(getattr(r, side), fault=Fault.HANG)
        body = BODY if "Answer" in header else STREAM
        answer = await r.client.post(PATH, json=body, headers={header: "100"})
        assert (answer.status_code, code_of(answer)) == (504, code)
        await r.come_to_rest()


async def test_x7_decode_is_told_of_its_shorter_waits_and_a_client_in_a_hurry_shuts_nobody_out(data_path):
    async with rig(data_path=data_path, attempts=1, registration_s=3.0, breaker_failures=1) as r:
        r.behave(r.prefill, fault=Fault.HANG)
        r.behave(r.decode, fault=Fault.HANG)
        headers = {"X-Registration-Timeout-Ms": "9000", "X-KV-Wait-Timeout-Ms": "70", "X-Prefill-Timeout-Ms": "100"}
        answer = await r.client.post(PATH, json=STREAM, headers=headers)
        assert (answer.status_code, code_of(answer)) == (504, "prefill_timeout")
        params = r.decode.seen[0].fields["kv_transfer_params"]
        assert isinstance(params, dict)
        assert (params["registration_timeout_ms"], params["kv_wait_timeout_ms"]) == (3000, 70)
        r.behave(r.prefill)
        r.behave(r.decode)
        assert (await r.client.post(PATH, json=STREAM)).status_code == 200
        await r.come_to_rest()


async def test_x5_a_store_that_does_not_answer_is_named_as_the_reason(data_path):
    async with rig(data_path=data_path, static=False, store="redis://127.0.0.1:1") as r:
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, code_of(answer), answer.headers["retry-after"]) == (503, "store_down", "1")
        assert (await r.client.get("/health")).status_code == 200
        assert (await r.client.get("/readyz")).status_code == 503
