"""Membership on a real store: greeting partners, being fenced by a newer start, and a store that goes away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from engine_shim.core.fates import Call
from engine_shim.driver.driver import Driver
from engine_shim.driver.membership import Beat, Membership
from engine_shim.driver.peers import Peers
from router.contract.ids import Epoch
from router.contract.instance import Role
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from router.store.fleet import FleetStore
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Site, small_layout, until

pytestmark = pytest.mark.needs("redis")
QUICK = Beat(every_s=0.05, lease_for_s=2.0)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.aclose()


def peers_of(driver: Driver) -> Peers:
    assert driver.hand_over is not None
    return driver.hand_over.peers


async def test_partners_meet_before_the_first_request_and_leave_the_fleet(
    site: Site, redis: Redis, namespace: str
) -> None:
    store = FleetStore(redis, namespace)
    p = await site.open(Role.PREFILL, FakeEngine(small_layout()))
    d = await site.open(Role.DECODE, FakeEngine(small_layout(8)))
    members = [Membership(store, driver, QUICK) for driver in (p, d)]
    for member in members:
        await member.join()
    await until(lambda: peers_of(p).known() != () and peers_of(d).known() != ())
    assert peers_of(p).known() == (d.instance.kv.engine_id,)
    assert {record.instance.instance_id for record in await store.snapshot()} == {
        p.instance.instance_id,
        d.instance.instance_id,
    }
    for member in members:
        await member.leave()
    assert await store.snapshot() == ()


async def test_two_prefills_have_nothing_to_say_to_each_other(site: Site, redis: Redis, namespace: str) -> None:
    store = FleetStore(redis, namespace)
    drivers = [await site.open(Role.PREFILL, FakeEngine(small_layout())) for _ in range(2)]
    members = [Membership(store, driver, QUICK) for driver in drivers]
    for member in members:
        await member.join()
    await asyncio.sleep(0.3)
    assert [peers_of(driver).known() for driver in drivers] == [(), ()]
    for member in members:
        await member.leave()


async def test_a_newer_start_makes_the_older_one_unready_and_its_peers_forget_it(
    site: Site, redis: Redis, namespace: str
) -> None:
    store = FleetStore(redis, namespace)
    p = await site.open(Role.PREFILL, FakeEngine(small_layout()))
    d = await site.open(Role.DECODE, FakeEngine(small_layout()))
    members = [Membership(store, driver, QUICK) for driver in (p, d)]
    for member in members:
        await member.join()
    await until(lambda: peers_of(d).known() != ())
    epoch = await store.claim_epoch(p.instance.instance_id)
    assert epoch > Epoch(1)
    site.calls[peers_of(p).card.engine_id] = Call.ANOTHER
    kv = replace(p.instance.kv, engine_id=f"{p.instance.instance_id}@{epoch}")
    assert await store.register(replace(p.instance, epoch=epoch, kv=kv), 5.0)
    await until(lambda: not p.ready)
    await until(lambda: p.instance.kv.engine_id not in peers_of(d).known())
    assert peers_of(d).counts["peer_died"] == 1
    for member in members:
        await member.leave()


async def test_a_store_that_goes_away_and_comes_back_empty_is_joined_again(site: Site, namespace: str) -> None:
    d = await site.open(Role.DECODE, FakeEngine(small_layout()))
    with EmbeddedStore() as server:
        redis = connect(server.url)
        store = FleetStore(redis, namespace)
        member = Membership(store, d, QUICK)
        await member.join()
        await redis.flushall()
        async with asyncio.timeout(10):
            while [record.instance for record in await store.snapshot()] != [d.instance]:
                await asyncio.sleep(0.02)
        server.stop()
        await asyncio.sleep(0.3)
        assert d.ready
        await member.leave()
        await redis.aclose()
