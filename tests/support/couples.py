"""Two Drivers with fake engines, a prefill and a decode, and the decode's own routes on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import uvicorn
from fastapi import APIRouter, FastAPI

from engine_shim.driver import Driver
from engine_shim.serve.problems import on_problem
from router.contract.errors import TandemError
from router.contract.ids import EngineId
from router.contract.instance import Role
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Clocks, Site, quiet, small_layout, until


@dataclass
class Couple:
    """Blocks are of 4 tokens on prefill and of 8 on decode."""

    site: Site
    engines: tuple[FakeEngine, FakeEngine]
    prefill: Driver
    decode: Driver
    port: int
    """Where decode's routes are."""

    @property
    def decode_id(self) -> EngineId:
        return EngineId(list(self.site.drivers)[1])

    async def wait_quiet(self) -> None:
        """Returns once neither holds anything."""
        await until(lambda: quiet(self.prefill, self.engines[0]) and quiet(self.decode, self.engines[1]))


CoupleT = TypeVar("CoupleT", bound=Couple)


@asynccontextmanager
async def couple_of(
    kind: type[CoupleT], site: Site, routes: Callable[[Driver], APIRouter], clocks: Clocks | None = None
) -> AsyncIterator[CoupleT]:
    """Both of them on `site`, with `routes` of decode served; `clocks` are decode's."""
    engines = FakeEngine(small_layout(4)), FakeEngine(small_layout(8))
    prefill = await site.open(Role.PREFILL, engines[0])
    decode = await site.open(Role.DECODE, engines[1], clocks)
    app = FastAPI()
    app.include_router(routes(decode))
    app.add_exception_handler(TandemError, on_problem)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield kind(site, engines, prefill, decode, server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    await serving
    await site.aclose()
