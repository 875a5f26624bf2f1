"""Clients that stream completions through whatever a Service says, and keep what went wrong."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx


@dataclass
class Load:
    """A closed loop."""

    addresses: Callable[[], Sequence[str]]
    body: dict[str, object]
    served: Counter[str] = field(default_factory=Counter)
    """Good answers by the address that was asked."""
    failures: list[str] = field(default_factory=list)
    _turn: itertools.count[int] = field(default_factory=itertools.count)
    _over: bool = False

    @asynccontextmanager
    async def running(self, clients: int) -> AsyncIterator[Load]:
        """Inside, clients ask; at the end each has its last answer."""
        async with httpx.AsyncClient(timeout=120.0, limits=httpx.Limits(max_connections=None)) as client:
            tasks = [asyncio.create_task(self._ask(client)) for _ in range(clients)]
            try:
                yield self
            finally:
                self._over = True
                await asyncio.gather(*tasks)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        while not self._over:
            addresses = self.addresses()
            url = addresses[next(self._turn) % len(addresses)]
            try:
                wrong = await self._stream(client, url)
            except httpx.HTTPError as error:
                wrong = repr(error)
            if wrong:
                self.failures.append(f"{url}: {wrong}")
            else:
                self.served[url] += 1

    async def _stream(self, client: httpx.AsyncClient, url: str) -> str:
        """What is wrong with one answer; "" when it is whole."""
        async with client.stream("POST", f"{url}/v1/completions", json=self.body | {"stream": True}) as answer:
            text = (await answer.aread()).decode()
        if answer.status_code != 200:
            return f"{answer.status_code} {text[:300]}"
        events = [line for line in text.splitlines() if line.startswith("data: {")]
        if (
            '"error"' in text
            or not text.endswith("data: [DONE]\n\n")
            or len(events) < int(str(self.body["max_tokens"]))
        ):
            return f"{len(events)} events, then {text[-200:]!r}"
        return ""
