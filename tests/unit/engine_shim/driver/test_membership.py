"""Membership beside a store's client that keeps a cancellation for itself."""

import asyncio

import pytest

from engine_shim.driver.membership import Beat, Membership
from router.contract.instance import Role
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Site, small_layout
from tests.support.tasks import outlives_errors


class Forgetful:
    """A store whose heartbeat, once under way, ends well although it was cancelled; all calls are in `told`."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.under_way = asyncio.Event()

    async def register(self, instance, lease_for_s):
        self.told.append("register")
        return True

    async def heartbeat(self, instance_id, epoch, load, lease_for_s):
        self.under_way.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        self.told.append("heartbeat")
        return True

    async def snapshot(self):
        return ()

    async def leave(self, instance_id, epoch):
        self.told.append("leave")


async def test_who_leaves_says_nothing_more_although_a_cancellation_was_lost():
    site, store = Site(), Forgetful()
    driver = await site.open(Role.PREFILL, FakeEngine(small_layout()))
    member = Membership(store, driver, Beat(every_s=0.001))
    await member.join()
    await store.under_way.wait()
    async with asyncio.timeout(10):
        await member.leave()
    assert store.told == ["register", "heartbeat", "leave"]
    await site.aclose()


async def test_a_record_that_cannot_be_read_does_not_end_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    site, store = Site(), Forgetful()

    async def heartbeat(*_: object) -> bool:
        store.told.append("heartbeat")
        return True

    store.heartbeat = heartbeat
    driver = await site.open(Role.PREFILL, FakeEngine(small_layout()))
    member = Membership(store, driver, Beat(every_s=0.001))
    await outlives_errors(monkeypatch, store, "snapshot", member._run())
    assert store.told.count("heartbeat") >= 3
    await site.aclose()
