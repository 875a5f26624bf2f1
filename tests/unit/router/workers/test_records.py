"""The last requests of several workers, each in a place of its own."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from router.contract.ledger import Outcome
from router.core.record import Record
from router.observe.recent import OwnRecords, Recent
from router.workers import records as module
from router.workers.figures import Place
from router.workers.records import SharedRecords


def record(number: int, outcome: Outcome = Outcome.SERVED) -> Record:
    return Record(float(number), f"req-{number}", f"client-{number}", "m", "/", True, outcome=outcome)


def worker(folder, slot: int, size: int, *kept: Record) -> SharedRecords:
    recent = Recent()
    for one in kept:
        recent.add(one)
    return SharedRecords(OwnRecords(recent, lambda: None), Place(folder, slot, size))


async def test_whoever_is_asked_knows_the_requests_of_all(tmp_path):
    first = worker(tmp_path, 0, 3, record(1), record(4))
    second = worker(tmp_path, 1, 3, record(2), record(5, Outcome.FAILED))
    third = worker(tmp_path, 2, 3, record(3))
    async with AsyncExitStack() as stack:
        for one in (first, second, third):
            await stack.enter_async_context(one.answering())
        for one in (first, second, third):
            assert [found.request_id for found in await one.newest(10)] == [f"req-{n}" for n in (5, 4, 3, 2, 1)]
            assert [found.request_id for found in await one.newest(2)] == ["req-5", "req-4"]
            assert await one.newest(10, failed_only=True) == [record(5, Outcome.FAILED)]
            assert await one.find("client-2") == record(2)
            assert await one.find("req-9") is None


async def test_who_does_not_answer_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    asked, dumb, dead = worker(tmp_path, 0, 3, record(1)), worker(tmp_path, 1, 3), worker(tmp_path, 2, 3, record(3))
    async with dead.answering():
        pass
    server = await asyncio.start_unix_server(lambda reader, writer: asyncio.Event().wait(), tmp_path / "records-1")
    async with server:
        assert await asked.newest(10) == [record(1)]
        assert await asked.find("req-1") == record(1)
    monkeypatch.setattr(module, "ANSWER_S", 20.0)
    async with dumb.answering(), dead.answering():
        assert await asked.newest(10) == [record(3), record(1)], "whoever comes back in a slot answers again"


@pytest.mark.parametrize("said", [b"", b"no question", b"\x91\x01"])
async def test_a_question_that_is_none_is_refused(tmp_path, said):
    asked = worker(tmp_path, 0, 1, record(1))
    async with asked.answering():
        reader, writer = await asyncio.open_unix_connection(tmp_path / "records-0")
        writer.write(said)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
