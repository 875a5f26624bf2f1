from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from engine_shim.engine.port import TokensOut
from engine_shim.serve.merge import batches
from router.contract.errors import NoSeats


class Source:
    """An async iterator that a test feeds."""

    def __init__(self):
        self.queue = asyncio.Queue()

    def give(self, *items):
        for item in items:
            self.queue.put_nowait(item)

    def __aiter__(self):
        return self

    async def __anext__(self):
        item = await self.queue.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item


def out(text):
    return TokensOut("s", (1,), text)


async def test_one_stream_passes_through():
    source = Source()
    source.give(out("a"), out("b"), None)
    assert [batch async for batch in batches([source])] == [[(0, out("a"))], [(0, out("b"))]]


async def test_outputs_that_came_together_stay_together():
    one, two = Source(), Source()
    async with aclosing(batches([one, two])) as several:
        one.give(out("a"))
        two.give(out("b"))
        assert sorted(await anext(several), key=lambda each: each[0]) == [(0, out("a")), (1, out("b"))]
        two.give(out("c"), None)
        assert await anext(several) == [(1, out("c"))]
        one.give(out("d"), None)
        assert await anext(several) == [(0, out("d"))]
        with pytest.raises(StopAsyncIteration):
            await anext(several)


@pytest.mark.parametrize("error", [NoSeats("x"), RuntimeError("bug")])
async def test_an_error_of_any_stream_ends_all(error):
    one, two = Source(), Source()
    two.give(error)
    with pytest.raises(type(error)):
        await anext(batches([one, two]))


async def test_nothing_runs_on_after_the_reader_has_left():
    before = asyncio.all_tasks()
    async with aclosing(batches([Source(), Source()])) as several:
        reading = asyncio.ensure_future(anext(several))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
