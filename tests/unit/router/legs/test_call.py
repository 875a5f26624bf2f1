import asyncio

import pytest

from router.contract.errors import Blame, LegBroken, LegTimeout, LegUnreachable
from router.legs import call as module
from router.legs.call import call, get_request
from router.legs.pool import LegPool, PoolLimits


async def ask(answer, timeout_s=5.0):
    """The reply of a server that answers these bytes to whatever comes; None: nothing."""
    asked = []

    async def serve(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is not None:
            writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = LegPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", PoolLimits())
    try:
        reply = await call(pool, get_request(pool, b"/x"), Blame.PREFILL, timeout_s)
        assert asked[0].startswith(b"GET /x HTTP/1.1\r\nhost: 127.0.0.1:")
        return reply
    finally:
        pool.close()
        server.close()
        await server.wait_closed()


async def test_an_answer_comes_back_whole():
    reply = await ask(b"HTTP/1.1 404 X\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    assert (reply.status, reply.body) == (404, b"abc")
    assert (b"a", b"b") in reply.headers


async def test_no_answer_in_time_is_a_timeout():
    with pytest.raises(LegTimeout, match="prefill"):
        await ask(None, 0.05)


async def test_half_an_answer_or_too_much_of_it_is_a_broken_leg(monkeypatch):
    with pytest.raises(LegBroken):
        await ask(b"nonsense\r\n\r\n")
    monkeypatch.setattr(module, "MAX_BYTES", 3)
    with pytest.raises(LegBroken, match="more than 3 bytes"):
        await ask(b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nabcd")


async def test_a_closed_port_is_unreachable():
    pool = LegPool("http://127.0.0.1:1", PoolLimits())
    with pytest.raises(LegUnreachable):
        await call(pool, get_request(pool, b"/x"), Blame.DECODE, 5.0)
