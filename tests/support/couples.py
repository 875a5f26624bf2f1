"""A prefill and a decode, Drivers with fake engines over the loopback fabric, and the requests that go through both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import uvicorn
from fastapi import APIRouter, FastAPI

from engine_shim.driver import Driver
from engine_shim.driver.hand_over import HandOver
from engine_shim.serve.problems import on_problem
from router.contract.errors import TandemError
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode, Role
from router.contract.wire import PrefillHandoff
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Clocks, Site, decode_handoff, prompt_request, quiet, small_layout, until

CoupleT = TypeVar("CoupleT", bound="Couple")


@dataclass
class Couple:
    """Their site, their engines, their Drivers."""

    site: Site
    p: FakeEngine
    d: FakeEngine
    prefill: Driver
    decode: Driver

    async def run(self, transfer_id: str, prompt: tuple[int, ...], mode: Mode, max_tokens: int = 3) -> list[int]:
        """Both legs as the router sends them; the tokens of decode."""
        if mode is Mode.PULL:
            await self.prefill_leg(transfer_id, prompt)
            return await self.decode_leg(transfer_id, prompt, mode, max_tokens)
        legs = self.prefill_leg(transfer_id, prompt), self.decode_leg(transfer_id, prompt, mode, max_tokens)
        return (await asyncio.gather(*legs))[1]

    async def prefill_leg(self, transfer_id: str, prompt: tuple[int, ...]) -> dict[str, object] | None:
        """What prefill answers."""
        handoff = PrefillHandoff(TransferId(transfer_id))
        stream = await self.prefill.submit(prompt_request(prompt, 1), handoff, 30.0)
        try:
            async for _ in stream:
                pass
        finally:
            stream.close()
        return stream.answer

    async def decode_leg(self, transfer_id: str, prompt: tuple[int, ...], mode: Mode, max_tokens: int = 3) -> list[int]:
        """The tokens of decode."""
        handoff = decode_handoff(transfer_id, self.prefill, mode)
        stream = await self.decode.submit(prompt_request(prompt, max_tokens), handoff, 30.0)
        try:
            return [token async for output in stream for token in output.token_ids]
        finally:
            stream.close()

    def is_quiet(self) -> bool:
        """Neither holds anything."""
        return quiet(self.prefill, self.p) and quiet(self.decode, self.d)

    async def wait_quiet(self, within_s: float = 10.0) -> None:
        """Returns once neither holds anything."""
        await until(self.is_quiet, within_s)


async def open_couple(
    p: FakeEngine | None = None,
    d: FakeEngine | None = None,
    clocks: Clocks | None = None,
    site: Site | None = None,
    kind: type[CoupleT] = Couple,  # type: ignore[assignment]
) -> CoupleT:
    """Both have started, on a site of their own unless one is given, which whoever asks closes."""
    site, p, d = site or Site(), p or FakeEngine(small_layout()), d or FakeEngine(small_layout())
    return kind(site, p, d, await site.open(Role.PREFILL, p, clocks), await site.open(Role.DECODE, d, clocks))


def hand_over_of(driver: Driver) -> HandOver:
    """Of an engine that hands over."""
    assert driver.hand_over is not None
    return driver.hand_over


def engine_id_of(driver: Driver) -> EngineId:
    """As peers know it."""
    return hand_over_of(driver).peers.card.engine_id


@asynccontextmanager
async def port_of(routes: APIRouter) -> AsyncIterator[int]:
    """Where these routes of a shim are served meanwhile."""
    app = FastAPI()
    app.include_router(routes)
    app.add_exception_handler(TandemError, on_problem)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving
