"""Router processes on one store: what a killed one has left open is ended by another, within its lease."""

import asyncio
import signal
from dataclasses import replace

import pytest

from router.bench.mock_behaviour import Behaviour, Fault
from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from router.contract.seal import Seal
from tests.support.routers import BODY, PATH, until
from tests.support.stored_site import HALF_OPEN, KEY, LEASE_S, site, stream

pytestmark = pytest.mark.needs("redis")

HANGING = replace(HALF_OPEN, fault=Fault.HANG)


async def test_requests_of_a_killed_router_are_released_by_the_others_each_once() -> None:
    async with site() as s, s.router() as first, s.router() as second, s.router() as third:
        # Half of them wait for prefill when the router dies, the others stream.
        streams = [asyncio.create_task(stream(first)) for _ in range(10)]
        await until(lambda: len(s.decode.seen) == 10)
        s.prefill.behaviour = s.decode.behaviour = HANGING
        streams += [asyncio.create_task(stream(first)) for _ in range(10)]
        own = asyncio.create_task(stream(second))
        await until(lambda: len(s.decode.seen) == 21)
        await s.open_tickets_are(21)
        dying = {owner for owner in await s.owners() if f"-{first.process.pid}-" in owner}
        await first.kill()
        await asyncio.gather(*streams)
        assert s.num_open == 21 + 11, "engines hold everything: they do not notice"
        await s.open_tickets_are(1)
        await until(lambda: s.num_open == 2)
        (left_s,) = [left for owner, left in (await s.owners()).items() if owner in dying]
        assert left_s < 0, "nothing is released before the lease has ended"
        assert set(s.decode.taken_back) == set(s.prefill.taken_back)
        assert len(s.decode.taken_back) == 20, "each is told once; those of the living are left alone"
        ended = [line for line in await s.last_lines() if line.stage == "abandoned"]
        assert [(line.note, line.writer in dying) for line in ended] == [("owner_gone", False)] * 20
        assert not own.done()
        reaped = [await router.gauge("tandem_reaped_tickets_total") for router in (second, third)]
        assert sum(reaped) == 20
        await second.kill()
        await own


async def test_without_another_router_they_stay_until_one_starts() -> None:
    """The ablation: nobody else cleans up, neither the store nor the engines."""
    async with site() as s:
        async with s.router() as only:
            streams = [asyncio.create_task(stream(only)) for _ in range(4)]
            await until(lambda: len(s.decode.seen) == 4)
            await s.open_tickets_are(4)
            await only.kill()
            await asyncio.gather(*streams)
        while min((await s.owners()).values()) > -LEASE_S:
            await asyncio.sleep(0.05)
        assert (await s.ledger.open_tickets(), s.decode.num_open, s.decode.taken_back) == (4, 4, [])
        async with s.router():
            await s.open_tickets_are(0)
            await until(lambda: s.num_open == 0)


async def test_an_engine_that_cannot_be_told_is_tried_again_and_costs_only_its_own_tickets() -> None:
    async with site() as s, s.router() as first, s.router() as second:
        deaf = MockEngine(Role.DECODE, "d1", seal=Seal(KEY), behaviour=replace(HALF_OPEN, cancel_status=500))
        await deaf.start()
        await s.fleet.register(deaf.instance, 600.0)
        async with asyncio.timeout(20):
            while len((await first.client.get("/admin/fleet")).json()["instances"]) < 3:
                await asyncio.sleep(0.02)
        streams = [asyncio.create_task(stream(first)) for _ in range(12)]
        await until(lambda: len(s.decode.seen) + len(deaf.seen) == 12)
        await s.open_tickets_are(12)
        num_deaf = len(deaf.seen)
        assert 0 < num_deaf < 12
        await first.kill()
        await asyncio.gather(*streams)
        await s.open_tickets_are(num_deaf)
        assert (s.decode.num_open, deaf.num_open) == (0, num_deaf)
        async with asyncio.timeout(20):
            while await second.gauge("tandem_orphaned_tickets") != num_deaf:
                await asyncio.sleep(0.05)
        deaf.behaviour = HALF_OPEN
        await s.open_tickets_are(0)
        assert deaf.num_open == 0
        await deaf.stop()


async def test_a_router_that_was_frozen_for_longer_than_its_lease_fails_what_it_had_and_serves_on() -> None:
    async with site() as s, s.router() as first, s.router() as second:
        streams = [asyncio.create_task(first.client.post(PATH, json=BODY | {"stream": True})) for _ in range(3)]
        await until(lambda: len(s.decode.seen) == 3)
        await s.open_tickets_are(3)
        first.process.send_signal(signal.SIGSTOP)
        await s.open_tickets_are(0)
        await until(lambda: s.num_open == 0)
        first.process.send_signal(signal.SIGCONT)
        for answer in await asyncio.gather(*streams):
            assert '"code":"leg_broken"' in answer.text
            assert "[DONE]" not in answer.text
        s.prefill.behaviour = s.decode.behaviour = Behaviour()
        assert (await first.client.post(PATH, json=BODY)).status_code == 200
        assert (await second.client.post(PATH, json=BODY)).status_code == 200
        await s.open_tickets_are(0)
        assert await first.gauge("tandem_reaped_tickets_total") == 0
        assert await second.gauge("tandem_reaped_tickets_total") == 3


async def test_a_router_that_stops_in_order_leaves_nothing_to_release() -> None:
    async with site() as s, s.router() as second:
        async with s.router("--grace-s", "1") as first:
            streaming = asyncio.create_task(first.client.post(PATH, json=BODY | {"stream": True}))
            await until(lambda: len(s.decode.seen) == 1)
            first.process.terminate()
            assert '"code":"draining"' in (await streaming).text
            assert await first.process.wait() == 0
        (resigned,) = [left_s for owner, left_s in (await s.owners()).items() if f"-{first.process.pid}-" in owner]
        assert resigned <= 0
        assert await s.ledger.open_tickets() == 0
        await until(lambda: s.num_open == 0)
        assert await second.gauge("tandem_reaped_tickets_total") == 0
