"""What runs beside the requests of one router, from its start to its end. Part of the build."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from router.driver.router import Router
from router.watched import keep_fresh
from router.workers.figures import SAVE_EVERY_S, Figures

if TYPE_CHECKING:
    from router.build import Parts


async def _save(router: Router, figures: Figures) -> None:
    """The other workers know what this one has counted, for ever."""
    while True:
        router.clerk.work_off()
        await asyncio.to_thread(figures.save)
        await asyncio.sleep(SAVE_EVERY_S)


@asynccontextmanager
async def running(parts: Parts) -> AsyncIterator[None]:
    """Inside, the fleet is watched, the ledger written, deadlines are swept and what dead routers have left is ended.

    On the way out everything is ended.
    """
    async with nullcontext() if parts.shared_records is None else parts.shared_records.answering():
        try:
            await _start(parts)
            yield
        finally:
            parts.router.drain()
            parts.router.abort()
            parts.router.sweep.stop()
            await parts.background.end()
            await parts.router.aclose()
            await _close(parts)


async def _start(parts: Parts) -> None:
    start = parts.background.start
    try:
        await asyncio.gather(parts.watch.look(), *([parts.reaper.look()] if parts.reaper is not None else ()))
        if parts.sharing is not None:
            await parts.sharing.look()  # before the first request, which would find the whole budget
    except Exception as error:
        parts.background.fail("start", error)
        raise
    parts.router.sweep.start()
    start("watch of the fleet", parts.watch.run())
    start("watch of keys and certificates", keep_fresh(parts.security.refreshables))
    start("governor", parts.governor.run())
    if parts.prober is not None:
        start("prober", parts.prober.run())
    if parts.ledger is not None:
        start("ledger", parts.ledger.run())
    if parts.sharing is not None:
        start("sharing of budgets", parts.sharing.run())
    if parts.reaper is not None:
        start("reaper", parts.reaper.run())
    if parts.figures is not None:
        start("keeper of figures", _save(parts.router, parts.figures))


async def _close(parts: Parts) -> None:
    if parts.ledger is not None:
        await parts.ledger.aclose()
    if parts.reaper is not None:
        await parts.reaper.resign()
    if parts.sharing is not None:
        await parts.sharing.resign()
    if parts.redis is not None:
        await parts.redis.aclose()
    if parts.servers is not None:
        await parts.servers.aclose()
    if parts.request_log is not None:
        await asyncio.to_thread(parts.request_log.close)
    if parts.tracing is not None:
        await asyncio.to_thread(parts.tracing.close)
    if parts.figures is not None:
        parts.figures.save()
