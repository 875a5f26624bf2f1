"""A closed loop of requests on kept-alive connections: each connection sends its next request when it has its answer.

It must cost less than what it measures, so it is callbacks on raw protocols and keeps one number per answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast

import httptools


@dataclass(slots=True)
class LoopResult:
    """What came back."""

    latencies_s: list[float] = field(default_factory=list)
    """Request written to answer read as a whole; only those with status 200."""
    failures: int = 0
    chunks: int = 0
    """Server-sent events that arrived, in whole answers and in those that were still running at the end."""
    gaps_s: list[float] = field(default_factory=list)
    """Between two reads of one stream; only where they are asked for."""
    seconds: float = 0.0

    @property
    def requests_per_s(self) -> float:
        """Good answers per second."""
        return len(self.latencies_s) / self.seconds if self.seconds else 0.0

    def percentile_us(self, percent: float) -> float:
        """Latency below which `percent` % of the answers lie, microseconds; 0 without answers."""
        if not self.latencies_s:
            return 0.0
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1e6


class _LoopConnection(asyncio.Protocol):
    """One connection of the loop."""

    def __init__(self, request: bytes, result: LoopResult, *, keeps_gaps: bool = False) -> None:
        self._request = request
        self._result = result
        self._keeps_gaps = keeps_gaps
        self._read_at = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sent_at = 0.0
        self.running = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_at = perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends while the loop runs is a failure."""
        if self.running:
            self._result.failures += 1

    def on_body(self, body: bytes) -> None:
        """Count events."""
        if body.startswith(b"data:"):
            self._result.chunks += body.count(b"data:")
            if self._keeps_gaps:
                now = perf_counter()
                if self._read_at:
                    self._result.gaps_s.append(now - self._read_at)
                self._read_at = now

    def on_message_complete(self) -> None:
        """Count the answer and send the next request."""
        self._read_at = 0.0
        if self._parser.get_status_code() == 200:
            self._result.latencies_s.append(perf_counter() - self._sent_at)
        else:
            self._result.failures += 1
        if self.running:
            self._send()

    def stop(self) -> None:
        """Send nothing more."""
        self.running = False
        if self._transport is not None:
            self._transport.abort()


async def closed_loop(
    port: int, request: bytes, num_connections: int, seconds: float, *, keeps_gaps: bool = False
) -> LoopResult:
    """Load 127.0.0.1:`port` with `request` for `seconds` seconds over `num_connections` connections."""
    loop = asyncio.get_running_loop()
    result = LoopResult()
    started_at = perf_counter()
    connections = [
        (
            await loop.create_connection(
                lambda: _LoopConnection(request, result, keeps_gaps=keeps_gaps), "127.0.0.1", port
            )
        )[1]
        for _ in range(num_connections)
    ]
    await asyncio.sleep(seconds)
    for connection in connections:
        connection.stop()
    result.seconds = perf_counter() - started_at
    return result


def request_bytes(stream: bool, body_bytes: int) -> bytes:
    """A chat request with a body of about `body_bytes` bytes."""
    head = b'{"model":"m","messages":[{"role":"user","content":"'
    tail = b'"}],"max_tokens":128,"temperature":0.7,"stream":%b}' % (b"true" if stream else b"false")
    body = head + b"x" * max(1, body_bytes - len(head) - len(tail)) + tail
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b"
    ) % (len(body), body)
