import asyncio

from router.legs.pool import LegPool, PoolLimits
from router.legs.probe import Probe


async def asked(answer: bytes | None, timeout_s: float = 5.0) -> tuple[list[int], bytes]:
    """What a probe finds at a server that answers so (None: not at all), and what the server read."""
    read, ends = [], asyncio.Queue()

    async def serve(reader, writer):
        read.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is not None:
            writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = LegPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", PoolLimits())
    Probe(pool, ends.put_nowait).ask(b"/readyz", timeout_s)
    found = [await ends.get()]
    pool.close()
    server.close()
    await asyncio.sleep(0)
    return found + [ends.get_nowait() for _ in range(ends.qsize())], b"".join(read)


async def test_the_status_is_what_counts():
    found, request = await asked(b"HTTP/1.1 503 X\r\ncontent-length: 2\r\n\r\n{}")
    assert found == [503]
    assert request.startswith(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1:")


async def test_without_an_answer_in_time_there_is_none():
    assert (await asked(None, 0.02))[0] == [0]


async def test_what_is_no_answer_is_none():
    assert (await asked(b"NOT HTTP\r\n\r\n"))[0] == [0]
