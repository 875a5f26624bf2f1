import asyncio

import pytest
from redis.asyncio import Redis

from router.store import pool as module
from router.store.pool import StorePool

pytestmark = pytest.mark.needs("redis")


async def test_a_rebuild_replaces_idle_connections_at_once_and_busy_ones_when_they_are_free(redis_url: str) -> None:
    pool = StorePool.from_url(redis_url, max_connections=2)
    client = Redis.from_pool(pool)
    idle, busy = await pool.get_connection(), await pool.get_connection()
    await pool.release(idle)
    await pool.rebuild()
    assert (idle.is_connected, busy.is_connected) == (False, True)
    await pool.release(busy)
    assert not busy.is_connected
    assert await client.ping()
    await client.aclose()


async def test_many_who_ask_at_once_rebuild_once_and_later_ones_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = StorePool.from_url(redis_url)
    await asyncio.gather(*(pool.rebuild() for _ in range(50)))
    assert pool.num_rebuilds == 1
    monkeypatch.setattr(module, "REBUILD_EVERY_S", 0.0)
    await pool.rebuild()
    assert pool.num_rebuilds == 2
    await pool.aclose()
