"""Routers on a store behind Sentinel: a primary that is killed costs no request, and recovery works afterwards."""

import asyncio

import pytest

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from router.contract.seal import Seal
from router.store.connection import connect
from router.store.fleet import FleetStore
from router.store.recovery import Recovery
from tests.support.read_ledger import ReadLedger
from tests.support.routers import BODY, PATH, until
from tests.support.sentinels import watched_pair
from tests.support.stored_site import HALF_OPEN, KEY, Site, stream

pytestmark = pytest.mark.needs("redis")


async def test_a_failover_costs_no_request_and_dead_routers_are_still_found() -> None:
    p0, d0 = MockEngine(Role.PREFILL, "p0", seal=Seal(KEY)), MockEngine(Role.DECODE, "d0", seal=Seal(KEY))
    async with watched_pair() as pair:
        client = connect(pair.url, timeout_s=0.5)
        fleet, ledger = FleetStore(client, "test"), ReadLedger(client, "test", "watcher")
        for engine in (p0, d0):
            await engine.start()
            await fleet.register(engine.instance, 600.0)
        site = Site(pair.url, p0, d0, ledger, Recovery(client, "test"), fleet)
        async with site.router() as first, site.router() as second:
            d0.behaviour = HALF_OPEN
            streams = [asyncio.create_task(stream(first)) for _ in range(5)]
            await until(lambda: d0.num_open == 5)
            d0.behaviour = Behaviour()
            await site.open_tickets_are(5)
            await pair.in_step()
            old = await pair.primary_port()
            pair.servers[old].kill()
            served = 0
            while await pair.primary_port() == old or await second.gauge("tandem_store_degraded"):
                assert (await second.client.post(PATH, json=BODY)).status_code == 200
                served += 1
            assert served > 0
            # Every request that was served meanwhile is closed; the five are still open.
            await site.open_tickets_are(5)
            await first.kill()
            await asyncio.gather(*streams)
            await site.open_tickets_are(0)
            await until(lambda: d0.num_open == 0)
            assert await second.gauge("tandem_reaped_tickets_total") == 5
        await client.aclose()
    for engine in (p0, d0):
        await engine.stop()
