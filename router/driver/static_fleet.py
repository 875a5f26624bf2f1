"""A fleet given as URLs: who each engine is, its shim tells by `GET /kv/instance`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import httpx

from router.contract.instance import Instance, Load
from router.legs.access import EngineAccess
from router.store.codec import decode_instance

LEASE_S = 10.0
"""An engine that has not answered for so long is out of the fleet; one that is only busy answers sooner."""
POLL_S = 1.0
TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class StaticSighting:
    """An engine's last answer."""

    instance: Instance
    load: Load
    lease_left_s: float


class StaticFleet:
    """The engines at fixed URLs."""

    def __init__(self, urls: Sequence[str], access: EngineAccess | None = None) -> None:
        access = access or EngineAccess()
        self._access = access
        self._urls = tuple(dict.fromkeys(urls))
        self._seen: dict[str, tuple[Instance, float]] = {}
        self._asked_at = -POLL_S
        secure = any(url.startswith("https:") for url in self._urls)
        # Certificates are loaded only where they are looked at.
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, verify=access.context() if secure else False)

    async def snapshot(self) -> tuple[StaticSighting, ...]:
        """Every engine that has answered within LEASE_S seconds; asks at most every POLL_S seconds."""
        now = monotonic()
        if now - self._asked_at >= POLL_S or not self._seen:
            self._asked_at = now
            await asyncio.gather(*(self._ask(url) for url in self._urls))
        now = monotonic()
        return tuple(StaticSighting(instance, Load(), at + LEASE_S - now) for instance, at in self._seen.values())

    async def aclose(self) -> None:
        """No connection is left."""
        await self._client.aclose()

    async def _ask(self, url: str) -> None:
        try:
            answer = await self._client.get(f"{url}/kv/instance", headers=self._access.headers(url))
        except httpx.HTTPError:
            return  # its lease runs on
        instance = decode_instance(answer.content) if answer.status_code == 200 else None
        if instance is not None:
            self._seen[url] = (instance, monotonic())
