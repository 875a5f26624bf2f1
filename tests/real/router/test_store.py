"""A router on a real store: the fleet comes from it, tickets go to it, and it may die."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from router.bench.mock_behaviour import Fault
from router.contract.errors import StoreDown
from router.contract.ids import Epoch, InstanceId, RequestId
from router.store import keys
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from router.store.fleet import FleetStore
from tests.support.cut_proxy import CutProxy
from tests.support.read_ledger import ReadLedger
from tests.support.routers import BODY, PATH, rig, until

pytestmark = pytest.mark.needs("redis")


@asynccontextmanager
async def stored_rig(**changes):
    """A rig whose engines are known from the store alone."""
    with EmbeddedStore() as store:
        redis = connect(store.url, timeout_s=0.5)
        fleet = FleetStore(redis, "test")
        async with rig(store=store.url, namespace="test", static=False, **changes) as r:
            for engine in r.engines:
                await fleet.register(engine.instance, 60.0)
            await until(lambda: r.parts.router.fleet.serves)
            yield r, store, fleet, ReadLedger(redis, "test", "reader")
        await redis.aclose()


async def test_instances_come_and_go_with_the_store():
    async with stored_rig() as (r, _, fleet, _):
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        decode = r.decode.instance
        await fleet.register(replace(decode, draining=True), 60.0)
        await until(lambda: not r.parts.router.fleet.serves)
        refused = await r.client.post(PATH, json=BODY)
        assert refused.json()["error"]["code"] == "no_decode"
        next_start = replace(decode, epoch=Epoch(decode.epoch + 1))
        await fleet.register(next_start, 60.0)
        await until(lambda: r.parts.router.fleet.serves)
        await fleet.leave(next_start.instance_id, next_start.epoch)
        await until(lambda: not r.parts.router.fleet.serves)
        assert 'tandem_instances_left_out{reason="unreadable"} 0.0' in (await r.client.get("/metrics")).text
        await r.parts.redis.hset(keys.fleet_instances("test"), r.prefill.instance.instance_id, b"of another release")
        await until(lambda: not r.parts.router.fleet.members)
        assert 'tandem_instances_left_out{reason="unreadable"} 1.0' in (await r.client.get("/metrics")).text


async def test_every_attempt_is_opened_and_closed_in_the_ledger():
    async with stored_rig(num_decode=2) as (r, _, _, ledger):
        r.behave(r.decodes[0], fault=Fault.CLOSE)
        r.behave(r.decodes[1], fault=Fault.CLOSE)
        answer = await r.client.post(PATH, json=BODY)
        assert answer.status_code == 502
        request_id = RequestId(answer.headers["x-request-id"])
        r.parts.router.clerk.work_off()
        await r.parts.ledger.flush()
        story = await ledger.story(request_id)
        assert [(line.attempt, line.stage) for line in story] == [
            (1, "opened"),
            (1, "failed"),
            (2, "opened"),
            (2, "failed"),
        ]
        assert await ledger.open_tickets() == 0


async def test_with_the_store_down_serving_goes_on_and_says_so():
    async with stored_rig() as (r, store, fleet, ledger):
        store.kill()
        with pytest.raises(StoreDown):
            await fleet.snapshot()
        await until(lambda: r.parts.watch.degraded)
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        state = await r.client.get("/readyz")
        assert (state.status_code, state.json()["degraded"]) == (200, True)
        assert "tandem_store_degraded 1.0" in (await r.client.get("/metrics")).text
        store.start()
        for engine in r.engines:
            await fleet.register(engine.instance, 60.0)
        await until(lambda: not r.parts.watch.degraded)
        answer = await r.client.post(PATH, json=BODY)
        assert answer.status_code == 200
        r.parts.router.clerk.work_off()
        await until(lambda: not r.parts.ledger.degraded)
        assert await ledger.open_tickets() == 0


async def test_requests_and_tokens_never_wait_for_a_store_that_is_slow(tmp_path):
    """Whole requests are answered between two words of the store: nothing of theirs can have waited for one."""
    with EmbeddedStore() as store:
        redis = connect(store.url)
        fleet, ledger = FleetStore(redis, "test"), ReadLedger(redis, "test", "reader")
        async with (
            CutProxy(tmp_path / "slow.sock", store.url) as proxy,
            rig(store=proxy.url, namespace="test", static=False) as r,
        ):
            for engine in r.engines:
                await fleet.register(engine.instance, 60.0)
            await until(lambda: r.parts.router.fleet.serves)
            proxy.open.clear()
            r.behave(r.decode, num_events=20, gap_s=0.005)
            asked = [r.client.post(PATH, json=BODY | {"stream": stream}) for stream in (True, False) * 5]
            answers = await asyncio.gather(*asked)
            assert {answer.status_code for answer in answers} == {200}
            assert sum(answer.text.endswith("data: [DONE]\n\n") for answer in answers) == 5
            assert not proxy.open.is_set()
            names = [RequestId(answer.headers["x-request-id"]) for answer in answers]
            assert [await ledger.story(name) for name in names] == [()] * 10
            proxy.open.set()
            await until(lambda: r.parts.ledger.counts.written >= 20 and not r.parts.ledger.degraded)
            assert [[line.stage for line in await ledger.story(name)] for name in names] == [["opened", "served"]] * 10
            assert await ledger.open_tickets() == 0
        await redis.aclose()


async def test_a_store_that_comes_back_empty_knows_the_running_requests_again():
    async with stored_rig(router_lease_s=0.5) as (r, store, fleet, ledger):
        r.behave(r.decode, num_events=100_000, gap_s=0.02)
        streaming = asyncio.create_task(r.client.post(PATH, json=BODY | {"stream": True}))
        async with asyncio.timeout(20):
            while await ledger.open_tickets() != 1:
                await asyncio.sleep(0.02)
        store.kill()
        await until(lambda: r.parts.watch.degraded)
        store.start()
        async with asyncio.timeout(20):
            while await ledger.open_tickets() != 1:
                await asyncio.sleep(0.02)
        streaming.cancel()
        await asyncio.gather(streaming, return_exceptions=True)
        async with asyncio.timeout(20):
            while await ledger.open_tickets() != 0:
                await asyncio.sleep(0.02)
        for engine in r.engines:
            await fleet.register(engine.instance, 60.0)


async def test_bad_records_beside_a_good_pair_are_left_out_and_the_pair_serves():
    """Whoever can write to the store may register anything; before, one bad URL ended every watch for good."""
    async with stored_rig(probe_s=0.05) as (r, _, fleet, _):
        good = r.decode.instance
        urls = ["http://h:8000/v1", "http://h:99999", "http://h\u00fc:1", "", "http://169.254.169.254"]
        for number, url in enumerate(urls):
            await fleet.register(replace(good, instance_id=InstanceId(f"bad{number}"), url=url), 60.0)
        await until(lambda: r.parts.watch.screen.left_out == {"url": 4, "host": 1})
        for _ in range(10):
            assert (await r.client.post(PATH, json=BODY)).status_code == 200
        assert {member.instance.instance_id for member in r.parts.router.fleet.members} == {"p0", "d0"}
        metrics = (await r.client.get("/metrics")).text
        assert 'tandem_instances_left_out{reason="host"} 1.0' in metrics
        assert (await r.client.get("/readyz")).status_code == 200 and r.parts.background.failure is None
