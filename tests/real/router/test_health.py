"""Instances that fail are left out and tried again; those that are only refused, busy or cancelled are not blamed."""

import asyncio

import pytest

from router.bench.mock_behaviour import Fault
from tests.support.routers import BODY, PATH, rig, until
from tests.support.wire import Wire, post

STREAM = BODY | {"stream": True}
OFF = {"retry_share": 0.0, "retry_floor_per_s": 0.0}


async def shut(r) -> frozenset[str]:
    await r.come_to_rest()
    return r.parts.router.health.shut


async def ask(r, times=1, body=BODY) -> list[int]:
    return [(await r.client.post(PATH, json=body)).status_code for _ in range(times)]


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_c1_requests_that_are_refused_open_no_breaker(side):
    """sglang issue 25811: a burst of too-long prompts marked every worker bad."""
    async with rig() as r:
        for status in [400] * 10 + [404, 405, 422]:
            r.behave(getattr(r, side), fault=Fault.REFUSE, status=status)
            assert await ask(r) == [status]
        r.behave(getattr(r, side))
        assert await ask(r) == [200]
        assert not r.parts.router.health.alert


async def test_c2_a_busy_engine_is_left_alone_for_as_long_as_it_asks_and_is_not_dead():
    """sglang issue 39464: a full engine's 503 opened the breaker, and all requests were shed for its cool-down."""
    async with rig(breaker_open_s=30.0, attempts=1) as r:
        r.behave(r.decode, fault=Fault.REFUSE, status=503, headers=((b"Retry-After", b"1"),), times=5)
        for _ in range(5):
            answer = await r.client.post(PATH, json=BODY)
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) == 1
        assert await ask(r) == [200], "nobody else is there, so it is asked"
        assert r.parts.router.health.state_of("d0") == "busy"
    async with rig(num_decode=2, breaker_open_s=30.0) as r:
        r.behave(r.decode, fault=Fault.REFUSE, status=503, headers=((b"Retry-After", b"5"),))
        assert await ask(r, 20) == [200] * 20
        assert len(r.decode.seen) == 1 and len(r.decodes[1].seen) == 20


@pytest.mark.parametrize("side", ["prefills", "decodes"])
async def test_c14_an_instance_that_fails_is_left_out_until_a_canary_finds_it_well(side):
    """production-stack issue 749, with a port that is closed: its requests move on, and then nobody tries it."""
    async with rig(num_prefill=2, num_decode=2, breaker_open_s=0.3, fleet_poll_s=30.0) as r:
        broken, other = getattr(r, side)
        url = broken.url
        for decode in r.decodes:
            r.behave(decode, delay_s=0.02)  # as one that waits for prefill's KV cache
        await broken.stop()
        while not await shut(r):
            assert await ask(r) == [200], "other instances cure it"
        text = (await r.client.get("/metrics")).text
        assert f'tandem_instance_shut{{instance_id="{broken.name}",state="' in text
        await broken.start(int(url.rpartition(":")[2]))
        before = len(other.seen)
        async with asyncio.timeout(20):
            while r.parts.router.health.alert:
                assert await ask(r) == [200]
        assert broken.seen and len(other.seen) > before


async def test_when_every_instance_is_open_requests_are_tried_all_the_same():
    async with rig(attempts=1, breaker_open_s=30.0) as r:
        r.behave(r.decode, fault=Fault.CLOSE)
        assert await ask(r, 5) == [502] * 5
        assert await shut(r) == {"d0"}
        r.behave(r.decode)
        assert await ask(r) == [200]
        assert not await shut(r)


@pytest.mark.parametrize("fault", [Fault.CLOSE, Fault.GARBAGE, Fault.EMPTY])
async def test_c20_a_400_neither_ends_a_row_of_failures_nor_closes_a_half_open_breaker(fault):
    """smg issue 2565: counting 4xx as success lets a malformed request prove a broken engine healthy."""
    async with rig(num_decode=2, attempts=1, breaker_open_s=0.1, decode_policy="round_robin") as r:
        broken = r.decode
        health = r.parts.router.health
        for behaviour in ({"fault": fault}, {"fault": Fault.REFUSE, "status": 400}) * 2 + ({"fault": fault},):
            r.behave(broken, **behaviour)
            seen = len(broken.seen)
            while len(broken.seen) == seen:
                await ask(r)
        await r.come_to_rest()
        assert health.state_of("d0") == "open"
        r.behave(broken, fault=Fault.REFUSE, status=400)
        seen = len(broken.seen)
        async with asyncio.timeout(20):
            while len(broken.seen) == seen:
                await ask(r)
        await r.come_to_rest()
        assert health.state_of("d0") == "half_open"


async def test_a_client_that_leaves_says_nothing_about_the_engine():
    async with rig() as r:
        for number in range(5):
            r.behave(r.decode, fault=Fault.HANG)
            wire = await Wire.to(r.port)
            wire.send(post(PATH, STREAM))
            await until(lambda number=number: len(r.decode.seen) == number + 1)
            wire.cut()
            await r.come_to_rest()
        assert not r.parts.router.health.alert


async def test_streams_that_always_break_off_open_the_breaker():
    async with rig(num_decode=2, breaker_open_s=30.0) as r:
        r.behave(r.decode, fault=Fault.CUT, fault_after=1, gap_s=0.001)
        while not r.parts.router.health.shut:
            await ask(r, body=STREAM)
        assert await shut(r) == {"d0"}
        assert len(r.decode.seen) == 3


async def test_c19_a_pair_that_cannot_hand_over_is_avoided_and_tried_again():
    """sglang issue 13054: one passing transfer error made a healthy pair answer 500 until a restart."""
    broken_link = b'{"error":{"message":"no","type":"server_error","param":null,"code":"handshake_failed"}}'
    async with rig(num_prefill=2, breaker_failures=1, breaker_open_s=0.2) as r:
        health = r.parts.router.health
        r.behave(r.decode, fault=Fault.REFUSE, status=502, error_body=broken_link, times=1)
        assert await ask(r) == [200], "another prefill cures it"
        assert health.apart and not health.shut, "each may be well with others"
        async with asyncio.timeout(20):
            while health.alert:
                assert await ask(r) == [200]
        assert health.trips == {"pair": 1}


async def test_retries_stay_within_their_budget_and_say_so():
    async with rig(num_decode=2, breaker_failures=0, **OFF) as r:
        r.behave(r.decode, fault=Fault.CLOSE)
        statuses = await ask(r, 10)
        assert 502 in statuses, "no retry was paid for"
        text = (await r.client.get("/metrics")).text
        assert f'tandem_retries_denied_total{{why="budget"}} {float(statuses.count(502))}' in text


@pytest.mark.parametrize("side", ["prefills", "decodes"])
async def test_c11_an_instance_that_is_not_ready_gets_no_request(side):
    """production-stack issue 619: requests hung on an engine that was started and not ready."""
    async with rig(num_prefill=2, num_decode=2, probe_s=0.05, probe_timeout_s=0.2) as r:
        health = r.parts.router.health
        loading, other = getattr(r, side)
        for engine in (loading, other):
            r.behave(engine, ready_status=503, fault=Fault.HANG)
        await until(lambda: {loading.name, other.name} <= health.shut)
        answer = await r.client.post(PATH, json=BODY)
        code = "no_prefill" if side == "prefills" else "no_decode"
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
        assert answer.headers["retry-after"] == "1" and not loading.seen and not other.seen
        r.behave(other)
        await until(lambda: other.name not in health.shut)
        assert await ask(r, 4) == [200] * 4
        assert not loading.seen


async def test_a_silent_instance_is_left_out_unless_it_is_the_only_one():
    async with rig(num_decode=2, probe_s=0.05, probe_timeout_s=0.05) as r:
        r.behave(r.decode, ready_status=0)
        await until(lambda: r.parts.router.health.state_of("d0") == "silent")
        assert await ask(r, 8) == [200] * 8 and not r.decode.seen
        r.behave(r.decodes[1], ready_status=0)
        await until(lambda: len(r.parts.router.health.shut) == 2)
        assert await ask(r) == [200] and r.decode.seen, "the one that is silent for longer is tried"
