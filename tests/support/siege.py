"""A siege of the HTTP door: `python -m tests.support.siege`: idle connections, slow clients, huge heads and bodies.

All at once, while good requests must be served and the router's memory stay bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
from collections import Counter
from dataclasses import dataclass, field

import httpx
import psutil

from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from tests.support.router_process import router_process
from tests.support.routers import BODY, PATH

POST = f"POST {PATH} HTTP/1.1\r\nHost: t\r\n".encode()
IDLE_BYTES = 24 * 1024
"""What the router may hold for a connection that does nothing."""
BASE_BYTES = 96 << 20
"""And for everything else together, bodies on their way included."""


@dataclass(frozen=True, slots=True)
class Force:
    """How many besiege."""

    idle: int = 10_000
    """Half of them have had one answer, half have sent nothing."""
    slow: int = 500
    """Send a byte of a head or of a body now and then."""
    heads: int = 20
    """Send a head of 1 MB."""
    bodies: int = 10
    body_bytes: int = 100 << 20
    requests: int = 200
    """Good requests, one after the other."""


@dataclass(slots=True)
class Report:
    """What was seen."""

    grown_bytes: int = 0
    allowed_bytes: int = 0
    served: Counter[int] = field(default_factory=Counter)
    heads: Counter[int] = field(default_factory=Counter)
    bodies: Counter[int] = field(default_factory=Counter)


async def besiege(force: Force) -> Report:
    """The siege of a router in a process of its own, before two mock engines."""
    engines = [MockEngine(Role.PREFILL, "p0", records=False), MockEngine(Role.DECODE, "d0", records=False)]
    urls = [await engine.start() for engine in engines]
    try:
        async with router_process("--prefill", urls[0], "--decode", urls[1]) as router:
            return await _besiege(force, router.process.pid, router.client)
    finally:
        for engine in engines:
            await engine.stop()


async def _besiege(force: Force, pid: int, client: httpx.AsyncClient) -> Report:
    port = client.base_url.port
    assert port is not None
    for _ in range(20):
        await client.post(PATH, json=BODY)
    process, report = psutil.Process(pid), Report()
    before = process.memory_info().rss
    report.allowed_bytes = BASE_BYTES + force.idle * IDLE_BYTES
    open_: list[asyncio.StreamWriter] = []
    await _open_idle(port, force.idle, open_)
    slow = [asyncio.create_task(_be_slow(port, number)) for number in range(force.slow)]
    huge = [asyncio.create_task(_send_head(port, report.heads)) for _ in range(force.heads)]
    huge += [asyncio.create_task(_send_body(port, force.body_bytes, report.bodies)) for _ in range(force.bodies)]
    for _ in range(force.requests):
        report.served[(await client.post(PATH, json=BODY)).status_code] += 1
        report.grown_bytes = max(report.grown_bytes, process.memory_info().rss - before)
    await asyncio.gather(*huge)
    report.grown_bytes = max(report.grown_bytes, process.memory_info().rss - before)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    for writer in open_:
        writer.transport.abort()
    report.served[(await client.post(PATH, json=BODY)).status_code] += 1
    return report


async def _open_idle(port: int, num: int, open_: list[asyncio.StreamWriter]) -> None:
    for start in range(0, num, 100):
        pairs = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", port) for _ in range(min(100, num - start)))
        )
        open_ += [writer for _, writer in pairs]
        for reader, writer in pairs[::2]:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
            await reader.readuntil(b"}")


async def _be_slow(port: int, number: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(POST if number % 2 else POST + b"Content-Length: 9999\r\n\r\n")
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.2)
    finally:
        writer.transport.abort()


async def _send_head(port: int, statuses: Counter[int]) -> None:
    await _send(port, POST + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n", 1, statuses)


async def _send_body(port: int, size: int, statuses: Counter[int]) -> None:
    piece = b"x" * (1 << 20)
    await _send(port, POST + b"Content-Length: %d\r\n\r\n" % size + piece, size >> 20, statuses, piece)


async def _send(port: int, first: bytes, num: int, statuses: Counter[int], piece: bytes = b"") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.readline())
    with contextlib.suppress(ConnectionError):  # the router may cut what goes on and on
        writer.write(first)
        for _ in range(num - 1):
            await writer.drain()
            writer.write(piece)
    line = await answer
    statuses[int(line.split()[1]) if line else 0] += 1
    writer.transport.abort()


def main() -> int:
    """Status 0: all were served, and memory stayed in bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.siege", description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = asyncio.run(besiege(Force(idle=given.idle)))
    print(report)
    good = set(report.served) == {200} and set(report.heads) == {431} and set(report.bodies) == {413}
    return 0 if good and report.grown_bytes < report.allowed_bytes else 1


if __name__ == "__main__":
    sys.exit(main())
