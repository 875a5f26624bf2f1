"""A budget that holds for two replicas together, in a real store."""

import asyncio

import httpx
import pytest

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from tests.support.router_process import router_process
from tests.support.routers import BODY, PATH

TOTAL = 6
LEASE_S = 3.0


class Load:
    """A loop that always has more requests open at one router than the budget allows."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.refused = 0
        self.served = 0
        self._tasks = [asyncio.create_task(self._run(client)) for _ in range(2 * TOTAL)]

    async def _run(self, client: httpx.AsyncClient) -> None:
        while True:
            try:
                status = (await client.post(PATH, json=BODY)).status_code
            except httpx.TransportError:
                return
            self.served += status == 200
            self.refused += status == 503
            if status != 200:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.needs("redis")
async def test_two_replicas_never_have_more_in_flight_than_the_total_and_use_it(redis_url, namespace):
    prefill, decode = MockEngine(Role.PREFILL, "p0"), MockEngine(Role.DECODE, "d0", behaviour=Behaviour(delay_s=0.1))
    urls = [await prefill.start(), await decode.start()]
    flags = ("--store", redis_url, "--namespace", namespace, "--prefill", urls[0], "--decode", urls[1])
    shared = ("--shared-budgets", "true", "--max-requests", str(TOTAL), "--router-lease-s", str(LEASE_S))
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, decode.num_open)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with router_process(*flags, *shared) as one, router_process(*flags, *shared) as other:
        loads = [Load(one.client), Load(other.client)]
        async with asyncio.timeout(30):
            while min(load.served for load in loads) < 20:  # both have a part of it
                await asyncio.sleep(0.05)
        assert most == TOTAL
        await other.kill()
        served = loads[0].served
        async with asyncio.timeout(30):
            while decode.num_open < TOTAL or loads[0].served < served + 20:  # the dead one's part returns
                await asyncio.sleep(0.01)
        assert most == TOTAL
        for load in loads:
            await load.stop()
        assert loads[0].refused > 0
    watching.cancel()
    await prefill.stop()
    await decode.stop()
