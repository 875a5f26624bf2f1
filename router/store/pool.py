"""Connections to the store: few, waited for when all are busy, and made anew once when another server has taken over.

A server that has been demoted keeps its connections and answers READONLY on each of them for ever, so the error never
looks like a lost connection: whoever gets it asks for a rebuild.
"""

from __future__ import annotations

import time

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.sentinel import SentinelConnectionPool

REBUILD_EVERY_S = 1.0


class StorePool(BlockingConnectionPool):
    """A pool for one address."""

    _rebuilt_at = float("-inf")
    num_rebuilds = 0

    async def rebuild(self) -> None:
        """Every command from here on goes over a new connection; those in use end theirs first.

        Many callers who are refused together rebuild once, and while the address still leads to the refusing server,
        once every REBUILD_EVERY_S.
        """
        now = time.monotonic()
        if now - self._rebuilt_at < REBUILD_EVERY_S:
            return
        self._rebuilt_at = now
        self.num_rebuilds += 1
        await self.update_active_connections_for_reconnect()  # type: ignore[no-untyped-call]
        await self.disconnect(inuse_connections=False)


class PrimaryPool(SentinelConnectionPool, StorePool):
    """A pool for whichever server the sentinels name as the primary at the moment of connecting."""

    async def aclose(self) -> None:
        """No connection is left, to the sentinels neither."""
        await super().aclose()
        await self.sentinel_manager.aclose()
