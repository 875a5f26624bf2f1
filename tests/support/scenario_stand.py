"""A Stand: a site, the mode in which it is asked, and what scenarios do with both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.chaos_load import Case, Reading
from tests.support.chaos_process import Victim
from tests.support.scenario_sites import OpenSite, Site

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

    async def post(self, path: str, body: dict[str, Any], router: int = 0, mode: str | None = None) -> httpx.Response:
        """`mode`: instead of the stand's; empty: the router chooses."""
        chosen = self.mode if mode is None else mode
        headers = {"x-tandem-mode": chosen} if chosen else {}
        return await self.client.post(self.site.routers[router].url + path, json=body, headers=headers)

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
        assert await self._held() == {}

    async def settle(self) -> None:
        """The same after prefill or a router has died in a push, which costs a stock decode its blocks."""
        held = await self._held()
        if self.site.engine == "vllm" and self.mode == "push":
            assert set(held) <= {"decode-0 blocks"}
            await self.restart(self.decode)
            held = await self._held()
        assert held == {}

    async def _held(self) -> dict[str, float]:
        """What is still held when everything that is ever released has been."""
        return (await self.site.wait_quiet(self.site.settles_s))[0]

    async def restart(self, victim: Victim) -> None:
        """It serves again, at the same address."""
        victim.is_well = False
        if victim.runs:
            victim.kill()
        victim.start()
        await self.site.wait_well(victim)


@asynccontextmanager
async def open_stand(opened: OpenSite, kind: str) -> AsyncIterator[Stand]:
    """A Stand of this kind, which is an engine and a mode: `vllm-shim-push`."""
    engine, _, mode = kind.rpartition("-")
    site = await opened.of(engine, mode)
    async with httpx.AsyncClient(timeout=site.patience_s, trust_env=False) as client:
        yield Stand(site, mode, client)


def tokens_of(answer: httpx.Response) -> list[list[int]]:
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]]


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.05)


async def read_stream(pieces: AsyncIterator[bytes], first: bytes = b"") -> Reading:
    """The rest of a stream that began with `first`, or as much as came before its connection broke."""
    reading = Reading(stream=True)
    reading.raw.extend(first)
    with suppress(httpx.TransportError):
        async for piece in pieces:
            reading.raw.extend(piece)
    return reading


async def grown(stand: Stand, before: float) -> bool:
    return await stand.site.prompt_tokens_of(stand.prefill) > before


async def has_requests(stand: Stand, victim: Victim) -> bool:
    return await stand.site.requests_of(victim) > 0


async def has_none(stand: Stand, victim: Victim) -> bool:
    return await stand.site.requests_of(victim) == 0


async def lists(stand: Stand, router: Victim, num_instances: int) -> bool:
    return len((await stand.client.get(f"{router.url}/admin/fleet")).json()["instances"]) == num_instances


async def leave_while_frozen(stand: Stand, body: dict[str, Any], victim: Victim) -> None:
    other = stand.decode if victim is stand.prefill else stand.prefill
    before = await stand.site.prompt_tokens_of(stand.prefill)
    victim.freeze()
    asked = asyncio.create_task(stand.post(TEXT, body))
    try:
        if victim is stand.decode:
            await until(lambda: grown(stand, before))
        elif stand.mode == "push":
            await until(lambda: has_requests(stand, other))
        else:
            await asyncio.wait({asked}, timeout=0.3)  # in pull mode decode knows nothing yet
    finally:
        asked.cancel()
        await asyncio.wait({asked})
        victim.thaw()
