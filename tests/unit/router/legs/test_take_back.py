import asyncio
import json
from time import monotonic

import pytest

from router.contract.errors import Blame, LegBroken
from router.contract.seal import CANCEL, Seal
from router.legs import take_back as module
from router.legs.pool import LegPool, PoolLimits
from router.legs.take_back import TakeBack, result_of, take_back_request

POOL = LegPool("http://h:1", PoolLimits())


class Line:
    status = 403


def test_the_call_names_the_transfer_and_is_sealed():
    head, _, body = take_back_request(POOL, b"req-1.1", b"owner_gone", Seal("the key")).partition(b"\r\n\r\n")
    assert json.loads(body) == {"transfer_id": "req-1.1", "reason": "owner_gone"}
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /kv/cancel HTTP/1.1"
    (seal,) = [line.partition(": ")[2] for line in lines if line.startswith("X-Tandem-Seal: ")]
    assert Seal("the key").header_holds(CANCEL, body, seal)
    assert not Seal("another").header_holds(CANCEL, body, seal)


def test_it_tells_once_how_it_ended():
    ends = []
    call = TakeBack(POOL, ends.append)
    call.on_answer(Line, b"{", False)
    assert (ends, call.ended) == ([], False)
    call.on_answer(Line, b"}", True)
    assert (ends, call.ended) == ([403], True)
    TakeBack(POOL, ends.append).on_unreachable("refused")
    assert ends == [403, 0]


def test_a_call_that_is_answered_as_no_leg_is():
    ends = []
    call = TakeBack(POOL, ends.append)
    call.owner.on_decode_bytes(call, b"", ended=True)
    call.owner.on_leg_failed(call, LegBroken("cut", side=Blame.PREFILL))
    assert ends == [0]


@pytest.mark.parametrize(
    ("status", "result"),
    [(200, "told"), (204, "told"), (403, "refused"), (404, "refused"), (500, "failed"), (0, "failed")],
)
def test_what_came_of_it(status, result):
    assert result_of(status) == result


@pytest.fixture
async def engine():
    """A server that says nothing, or what is put into `says`; its URL and that list."""
    says = []

    async def serve(reader, writer):
        await reader.readuntil(b"}")
        if says:
            writer.write(says[0])
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", says
    server.close()


async def test_an_engine_that_never_answers_holds_no_connection_for_ever(engine, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.1)
    url, _ = engine
    pool, ended = LegPool(url, PoolLimits()), asyncio.get_running_loop().create_future()
    TakeBack(pool, ended.set_result).send(take_back_request(pool, b"req-1.1", b"taken_back", Seal()))
    assert await asyncio.wait_for(ended, 10) == 0
    until = monotonic() + 10
    while pool.num_busy and monotonic() < until:
        await asyncio.sleep(0.01)
    assert pool.num_busy == 0


async def test_a_call_that_is_over_is_not_given_up(engine, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.1)
    url, says = engine
    says.append(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    pool, ends = LegPool(url, PoolLimits()), []
    TakeBack(pool, ends.append).send(take_back_request(pool, b"req-1.1", b"taken_back", Seal()))
    cancelled = TakeBack(pool, ends.append)
    cancelled.send(take_back_request(pool, b"req-2.1", b"taken_back", Seal()))
    cancelled.cancel()
    await asyncio.sleep(0.5)
    assert ends == [200]
    pool.close()
