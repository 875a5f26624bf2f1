"""Several sequences' outputs as one sequence of batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence

from engine_shim.engine.port import TokensOut

Batch = list[tuple[int, TokensOut]]
"""Outputs with the numbers of their choices, in the order in which they came."""

_Queue = asyncio.Queue[tuple[int, TokensOut] | asyncio.Task[None]]


async def batches(streams: Sequence[AsyncIterable[TokensOut]]) -> AsyncGenerator[Batch, None]:
    """Outputs of all streams, together where they came together; ends when all have ended, raises the first error."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield [(0, output)]
        return
    queue: _Queue = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(choice, stream, queue)) for choice, stream in enumerate(streams)]
    for pump in pumps:
        # A pump announces its own end, so that none can end unseen.
        pump.add_done_callback(queue.put_nowait)
    try:
        num_running = len(pumps)
        while num_running:
            batch: Batch = []
            for item in [await queue.get(), *_waiting(queue)]:
                if isinstance(item, asyncio.Task):
                    item.result()
                    num_running -= 1
                else:
                    batch.append(item)
            if batch:
                yield batch
    finally:
        for pump in pumps:
            pump.cancel()


async def _pump(choice: int, stream: AsyncIterable[TokensOut], queue: _Queue) -> None:
    async for output in stream:
        queue.put_nowait((choice, output))


def _waiting(queue: _Queue) -> list[tuple[int, TokensOut] | asyncio.Task[None]]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
