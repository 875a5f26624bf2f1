import asyncio
from types import SimpleNamespace

from router.contract.errors import StoreDown
from router.core.burden import Burdens
from router.driver.watch import FleetWatch
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
    store.down, static.seen = True, ()
    await watch.look()
    await watch.look()
    assert watch.degraded and watch.looked_at == looked_at
    assert names(router.fleets[-1].members) == ["p0"]
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
