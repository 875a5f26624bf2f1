"""Clients that leave, in every phase, and connections that are used again."""

import asyncio
import gc
import random

import pytest

from router.api.protocol import DoorProtocol
from router.bench.mock_behaviour import Fault
from router.contract.instance import Mode
from router.driver.exchange import Exchange
from tests.support.routers import BODY, PATH, rig, until
from tests.support.wire import Wire, post

pytestmark = pytest.mark.parametrize("data_path", ["hook", "asgi"])

STREAM = BODY | {"stream": True}


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL, Mode.LOCAL])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["reset", "close"])
async def test_leaving_while_waiting_stops_every_leg(data_path, mode, stream, leave):
    async with rig(data_path=data_path, mode=mode) as r:
        r.behave(r.prefill, fault=Fault.HANG)
        r.behave(r.decode, fault=Fault.HANG)
        first = r.decode if mode is Mode.LOCAL else r.prefill
        wire = await Wire.to(r.port)
        wire.send(post(PATH, BODY | {"stream": stream}))
        await until(lambda: first.num_open == 1 and (mode is not Mode.PUSH or r.decode.num_open == 1))
        wire.cut() if leave == "reset" else await wire.close()
        await r.come_to_rest()
        assert all(seen.aborted for engine in r.engines for seen in engine.seen)
        text = (await r.client.get("/metrics")).text
        assert 'outcome="abandoned"' in text and 'outcome="failed"' not in text


async def test_leaving_in_mid_stream_stops_decode(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, num_events=10_000, gap_s=0.005)
        wire = await Wire.to(r.port)
        wire.send(post(PATH, STREAM))
        await wire.reader.readuntil(b"data: ")
        wire.cut()
        await r.come_to_rest()
        assert r.decode.seen[0].aborted
        assert 'tandem_cancels_total{phase="stream"} 1.0' in (await r.client.get("/metrics")).text


async def test_the_next_request_is_unharmed(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.prefill, delay_s=0.05)
        for number in range(20):
            wire = await Wire.to(r.port)
            wire.send(post(PATH, BODY))
            await until(lambda number=number: len(r.prefill.seen) > 2 * number)
            wire.cut()
            assert (await r.client.post(PATH, json=BODY)).status_code == 200
            await r.come_to_rest()


async def test_three_hundred_requests_of_which_many_leave_at_random(data_path):
    dice = random.Random(7)
    async with rig(num_prefill=2, num_decode=2, data_path=data_path) as r:
        for engine in r.prefills:
            r.behave(engine, delay_s=0.01)
        for engine in r.decodes:
            r.behave(engine, delay_s=0.005, num_events=10, gap_s=0.002)

        async def one(leaves_after_s: float | None) -> bool:
            wire = await Wire.to(r.port)
            wire.send(post(PATH, BODY | {"stream": dice.random() < 0.5}))
            if leaves_after_s is None:
                answer = await wire.answer()
                await wire.close()
                return answer.status == 200
            await asyncio.sleep(leaves_after_s)
            wire.cut()
            return True

        plans = [dice.uniform(0, 0.06) if dice.random() < 0.4 else None for _ in range(300)]
        for start in range(0, len(plans), 30):
            assert all(await asyncio.gather(*(one(plan) for plan in plans[start : start + 30])))
        await r.come_to_rest()
        before = [len(engine.seen) for engine in r.decodes]
        for _ in range(20):
            await r.client.post(PATH, json=BODY)
        after = [len(engine.seen) - seen for engine, seen in zip(r.decodes, before, strict=True)]
        assert sum(after) == 20 and min(after) >= 4, "both are still used"


async def test_a_connection_serves_many_requests(data_path):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        for number in range(5):
            wire.send(post(PATH, BODY | {"stream": number % 2 == 1}))
            answer = await wire.answer()
            assert (answer.status, answer.keep_alive) == (200, True)
        assert r.parts.router.pool(r.prefill.url).num_live == 1
        assert r.parts.router.pool(r.decode.url).num_live == 1


async def test_a_connection_that_the_engine_closes_when_idle_costs_no_error(data_path):
    async with rig(data_path=data_path) as r:
        for engine in r.engines:
            r.behave(engine, idle_close_s=0.05)
        for number in range(60):
            answer = await r.client.post(PATH, json=BODY)
            assert answer.status_code == 200, answer.text
            await asyncio.sleep(0.045 + 0.010 * (number % 5) / 4)
        assert len(r.decode.seen) == len(r.prefill.seen) == 60, "none was carried out twice"


async def test_a_reused_connection_closed_before_any_answer_is_tried_once_more(data_path):
    async with rig(data_path=data_path) as r:
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        r.behave(r.decode, fault=Fault.CLOSE, times=1)
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        again, last = r.decode.seen[-2:]
        assert again.headers["x-request-id"] == last.headers["x-request-id"]
        r.behave(r.decode, fault=Fault.CLOSE, times=2)
        assert (await r.client.post(PATH, json=BODY)).status_code == 502


def protocols() -> list[DoorProtocol]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, DoorProtocol)]


async def test_a_connection_that_was_reset_leaves_no_memory_behind(data_path):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: any(one.timeout_keep_alive_task is not None for one in protocols()))
        wire.cut()
        await until(lambda: protocols() == [])


async def test_a_request_is_gone_without_a_collection(data_path):
    async with rig(data_path=data_path) as r:
        gc.collect()
        gc.disable()
        try:
            for body in (BODY, STREAM):
                assert (await r.client.post(PATH, json=body)).status_code == 200
            await r.come_to_rest()
            r.parts.router.clerk.work_off()
            assert [one for one in gc.get_objects() if isinstance(one, Exchange)] == []
        finally:
            gc.enable()


async def test_idle_connections_are_closed_in_time(data_path):
    async with rig(data_path=data_path, engine_idle_s=0.1, fleet_poll_s=0.05) as r:
        await r.client.post(PATH, json=BODY)
        assert r.parts.router.pool(r.decode.url).num_idle == 1
        await until(lambda: r.parts.router.pool(r.decode.url).num_live == 0)
