"""A Stand: a site, the mode in which it is asked, and what scenarios do with both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.chaos_load import Case, Reading
from tests.support.chaos_process import Victim
from tests.support.scenario_sites import Site

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Stand:
    """A site and the mode in which it is asked."""

    site: Site
    mode: str
    client: httpx.AsyncClient

    @property
    def prefill(self) -> Victim:
        return self.site.victims["prefill-0"]

    @property
    def decode(self) -> Victim:
        return self.site.victims["decode-0"]

    def body(self, case: Case, **more: object) -> dict[str, Any]:
        asked = {"model": "tiny", "prompt": list(case.prompt), "max_tokens": len(case.answer), "temperature": 0}
        return asked | {"ignore_eos": True, "return_token_ids": True} | more

    async def post(self, path: str, body: dict[str, Any], router: int = 0, mode: str = "") -> httpx.Response:
        url = self.site.routers[router].url
        return await self.client.post(url + path, json=body, headers={"x-tandem-mode": mode or self.mode})

    @asynccontextmanager
    async def stream(self, body: dict[str, Any], router: int = 0) -> AsyncIterator[httpx.Response]:
        url = self.site.routers[router].url + TEXT
        asked = self.client.stream("POST", url, json=body | {"stream": True}, headers={"x-tandem-mode": self.mode})
        async with asked as answer:
            yield answer

    async def served(self, router: int = 0) -> None:
        """A usual request is answered right; one attempt at a pair that was just seen to fail may be refused."""
        case = self.site.cases[5]
        for _ in range(3):
            answer = await self.post(TEXT, self.body(case), router)
            if answer.status_code == 200:
                break
            assert answer.status_code >= 500 and answer.json()["error"]["code"]
        assert tokens_of(answer) == [list(case.answer)]

    async def quiet(self) -> None:
        """Nothing is held anywhere."""
        assert await self.site.wait_quiet(self.site.settles_s) == {}

    async def settle(self) -> None:
        """The same after prefill or a router has died in a push, which costs a stock decode its blocks."""
        held = await self.site.wait_quiet(self.site.settles_s)
        if self.site.engine == "vllm" and self.mode == "push":
            assert set(held) <= {"decode-0 blocks"}
            await self.restart(self.decode)
            held = await self.site.wait_quiet(self.site.settles_s)
        assert held == {}

    async def restart(self, victim: Victim) -> None:
        """It serves again, at the same address."""
        victim.is_well = False
        if victim.runs:
            victim.kill()
        victim.start()
        await self.site.wait_well(victim)


def tokens_of(answer: httpx.Response) -> list[list[int]]:
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]]


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.05)


async def read_stream(answer: httpx.Response) -> Reading:
    """The whole stream, or as much as came before its connection broke."""
    reading = Reading(stream=True)
    try:
        async for piece in answer.aiter_bytes():
            reading.raw.extend(piece)
    except httpx.TransportError:
        pass
    return reading
