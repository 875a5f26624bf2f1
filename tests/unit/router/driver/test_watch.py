import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from router.contract.errors import StoreDown
from router.core.burden import Burdens
from router.driver import watch as module
from router.driver.watch import DOUBT_S, FleetWatch
from tests.support.instances import decode, names, prefill


class Source:
    def __init__(self, *seen):
        self.seen, self.down, self.asked = seen, False, asyncio.Event()

    async def snapshot(self):
        self.asked.set()
        if self.down:
            raise StoreDown("The store is down; start it.")
        return self.seen


def watched(*sources, period_s=0.001):
    router = SimpleNamespace(burdens=Burdens(), fleets=[])
    router.take_fleet = router.fleets.append
    return FleetWatch(router, sources, period_s), router


async def test_all_sources_make_one_fleet():
    watch, router = watched(Source(prefill()), Source(decode()))
    await watch.look()
    assert names(router.fleets[-1].members) == ["d0", "p0"]
    assert not watch.degraded


async def test_a_source_that_is_down_keeps_its_last_word(caplog):
    store, static = Source(prefill()), Source(decode())
    watch, router = watched(store, static)
    await watch.look()
    looked_at = watch.looked_at
    store.down, static.seen = True, (decode("d1"),)
    await watch.look()
    await watch.look()
    assert watch.degraded and watch.looked_at == looked_at
    assert names(router.fleets[-1].members) == ["d1", "p0"]
    store.down = False
    await watch.look()
    assert not watch.degraded and watch.looked_at > looked_at
    assert [record.getMessage()[:9] for record in caplog.records] == ["the fleet", "the fleet"], "said once each"


async def test_it_looks_again_and_again():
    source = Source()
    watch, _ = watched(source)
    running = asyncio.create_task(watch.run())
    for _ in range(3):
        source.asked.clear()
        await source.asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def clock(monkeypatch):
    """Monotonic seconds, by hand."""
    now = SimpleNamespace(at=100.0)
    monkeypatch.setattr(module, "monotonic", lambda: now.at)
    return now


async def test_a_source_that_has_forgotten_everybody_is_not_believed_until_they_have_had_time_to_come_back(clock):
    store = Source(prefill(), decode())
    watch, router = watched(store)
    await watch.look()
    store.seen = ()
    await watch.look()
    assert names(router.fleets[-1].members) == ["d0", "p0"]
    store.seen = (decode(epoch=8),)
    clock.at += DOUBT_S - 0.1
    await watch.look()
    assert [(m.instance.instance_id, m.instance.epoch) for m in router.fleets[-1].members] == [("d0", 8), ("p0", 1)]
    clock.at += 0.2
    await watch.look()
    assert names(router.fleets[-1].members) == ["d0"], "whoever has not come back is gone"


async def test_a_source_that_goes_on_naming_nobody_is_believed_in_the_end(clock):
    store = Source(prefill())
    watch, router = watched(store)
    await watch.look()
    store.seen = ()
    for _ in range(4):
        await watch.look()
        assert names(router.fleets[-1].members) == ["p0"]
        clock.at += DOUBT_S / 4
    await watch.look()
    assert names(router.fleets[-1].members) == []


async def test_a_source_that_has_failed_is_doubted_for_a_while(clock):
    store = Source(prefill(), decode())
    watch, router = watched(store)
    await watch.look()
    store.down = True
    await watch.look()
    store.down, store.seen = False, (decode(),)
    await watch.look()
    assert names(router.fleets[-1].members) == ["d0", "p0"]
    clock.at += DOUBT_S
    await watch.look()
    assert names(router.fleets[-1].members) == ["d0"]


async def test_a_sound_source_is_believed_at_once(clock):
    store = Source(prefill(), decode())
    watch, router = watched(store)
    await watch.look()
    store.seen = (decode(),)
    await watch.look()
    assert names(router.fleets[-1].members) == ["d0"]


async def test_who_looks_at_each_server_himself_is_never_doubted():
    """C9: the last one that leaves leaves at once."""
    source = Source(prefill())
    router = SimpleNamespace(burdens=Burdens(), fleets=[])
    router.take_fleet = router.fleets.append
    watch = FleetWatch(router, (source,), 0.001, source)
    await watch.look()
    assert names(router.fleets[-1].members) == ["p0"]
    source.seen = ()
    await watch.look()
    assert names(router.fleets[-1].members) == []


async def test_an_answer_from_another_start_makes_another_fleet_at_once():
    source = Source(prefill())
    source.relearn = lambda instance, answer: answer == b"new"
    router = SimpleNamespace(burdens=Burdens(), fleets=[])
    router.take_fleet = router.fleets.append
    watch = FleetWatch(router, (source,), 0.001, source)
    await watch.look()
    seen = source.seen
    source.seen = lambda: (prefill(epoch=2),)
    assert router.relearn(seen[0].instance, b"old") is False and len(router.fleets) == 1
    assert router.relearn(seen[0].instance, b"new") is True
    assert router.fleets[-1].members[0].instance.epoch == 2


async def test_whom_an_operator_drains_is_draining_whatever_the_source_says():
    watch, router = watched(Source(prefill(), decode()))
    await watch.look()
    watch.drain(frozenset({"d0"}))
    assert {m.instance.instance_id: m.instance.draining for m in router.fleets[-1].members} == {"d0": True, "p0": False}
    await watch.look()
    assert router.fleets[-1].pools["m"].solos == ()
    watch.drain(frozenset())
    assert not any(member.instance.draining for member in router.fleets[-1].members)


async def test_one_bad_record_beside_a_good_pair_is_left_out():
    bad = prefill("p1")
    bad = replace(bad, instance=replace(bad.instance, url="http://h:99999"))
    watch, router = watched(Source(bad, prefill("p0"), decode("d0")))
    await watch.look()
    assert names(router.fleets[-1].members) == ["d0", "p0"]
    assert watch.screen.left_out == {"url": 1}


async def test_a_bug_in_one_look_does_not_end_the_watch(caplog):
    source = Source(prefill(), decode())
    watch, router = watched(source)
    await watch.look()
    source.seen = (None,)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(10):
        while not watch.degraded:
            await asyncio.sleep(0.001)
        for _ in range(2):
            source.asked.clear()
            await source.asked.wait()
        assert names(router.fleets[-1].members) == ["d0", "p0"], "the last fleet serves"
        source.seen = (decode("d1"),)
        while watch.degraded:
            await asyncio.sleep(0.001)
    assert names(router.fleets[-1].members) == ["d1"]
    assert len(caplog.records) == 1, "said once"
    running.cancel()
