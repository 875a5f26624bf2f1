"""A store, mock engines that never notice a closed connection, and routers in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import httpx

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.contract.errors import StoreDown
from router.contract.ids import RequestId, request_of
from router.contract.instance import Load, Role
from router.contract.ledger import StoryLine
from router.contract.seal import Seal
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from router.store.fleet import FleetStore
from router.store.recovery import Recovery
from tests.support.read_ledger import ReadLedger
from tests.support.router_process import RouterProcess, router_process
from tests.support.routers import BODY, PATH

KEY = "a key of this test alone"
LEASE_S = 2.0
HALF_OPEN = Behaviour(half_open=True, num_events=100_000, gap_s=0.05)


@dataclass
class Site:
    """A store, engines that never notice a closed connection, and what a test needs to look into the store."""

    url: str
    prefill: MockEngine
    decode: MockEngine
    ledger: ReadLedger
    recovery: Recovery
    fleet: FleetStore

    def router(self, *flags: str) -> AbstractAsyncContextManager[RouterProcess]:
        flags = ("--store", self.url, "--namespace", "test", "--router-lease-s", str(LEASE_S), *flags)
        return router_process(*flags, env={"TANDEM_DEPLOYMENT_KEY": KEY})

    @property
    def num_open(self) -> int:
        return self.prefill.num_open + self.decode.num_open

    async def owners(self) -> dict[str, float]:
        """Routers by the seconds that their lease has left."""
        left_s = (await self.recovery.renew("watcher", LEASE_S)).left_s
        return {owner: left for owner, left in left_s.items() if owner != "watcher"}

    async def open_tickets_are(self, number: int) -> None:
        """Also while a store fails over, which each client learns by itself."""
        async with asyncio.timeout(30):
            while await self._open_tickets() != number:
                await asyncio.sleep(0.02)

    async def _open_tickets(self) -> int:
        try:
            return await self.ledger.open_tickets()
        except StoreDown:
            return -1

    async def beat(self, *engines: MockEngine) -> None:
        """These engines say how busy they are, as their shims would every second."""
        for engine in engines:
            load = Load(running_seqs=engine.num_open)
            assert await self.fleet.heartbeat(engine.instance.instance_id, engine.instance.epoch, load, 600.0)

    async def last_lines(self) -> list[StoryLine]:
        transfers = [seen.headers["x-request-id"] for seen in self.decode.seen]
        return [(await self.ledger.story(RequestId(request_of(one)[0])))[-1] for one in transfers]


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    engines = [MockEngine(role, name, seal=Seal(KEY)) for role, name in ((Role.PREFILL, "p0"), (Role.DECODE, "d0"))]
    with EmbeddedStore() as store:
        redis = connect(store.url)
        fleet = FleetStore(redis, "test")
        for engine in engines:
            engine.behaviour = HALF_OPEN
            await engine.start()
            await fleet.register(engine.instance, 600.0)
        yield Site(store.url, *engines, ReadLedger(redis, "test", "watcher"), Recovery(redis, "test"), fleet)
        await redis.aclose()
        for engine in engines:
            await engine.stop()


async def stream(router: RouterProcess) -> None:
    """A request that would run for an hour; it ends when its router does."""
    try:
        await router.client.post(PATH, json=BODY | {"stream": True})
    except httpx.HTTPError:
        return
    raise AssertionError("the stream has ended well")
