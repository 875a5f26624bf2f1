"""A client that writes raw bytes and reads exactly what comes back."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass

import httptools


@dataclass(slots=True)
class RawAnswer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    keep_alive: bool

    def json(self) -> dict:
        return json.loads(self.body)


def post(path: str, body: object, *headers: str, length: int | None = None) -> bytes:
    """A POST request as bytes; `body` is JSON unless it is bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", *headers]
    lines.append(f"Content-Length: {len(raw) if length is None else length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + raw


class _Collector:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.complete = False
        self.keep_alive = False
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        assert not self.complete, "a second answer in one read"

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.keep_alive = self.parser.should_keep_alive()
        self.complete = self.parser.get_status_code() >= 200


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._rest = b""

    @classmethod
    async def to(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def answer(self) -> RawAnswer:
        """The next answer. Raises ConnectionError when the connection ends before the answer does."""
        collector = _Collector()
        while not collector.complete:
            # Byte by byte, so that what follows this answer stays unread.
            piece = await self.reader.read(1)
            if not piece:
                raise ConnectionError(f"closed after {b''.join(collector.pieces)!r}")
            collector.parser.feed_data(piece)
        return RawAnswer(
            collector.parser.get_status_code(), collector.headers, b"".join(collector.pieces), collector.keep_alive
        )

    async def answer_in_one(self) -> RawAnswer:
        """The next answer, read in large pieces: nothing may follow it."""
        collector = _Collector()
        while not collector.complete:
            piece = await self.reader.read(1 << 20)
            if not piece:
                raise ConnectionError("closed in the middle of an answer")
            collector.parser.feed_data(piece)
        return RawAnswer(
            collector.parser.get_status_code(), collector.headers, b"".join(collector.pieces), collector.keep_alive
        )

    async def rest(self) -> bytes:
        """Everything until the other side closes."""
        return await self.reader.read()

    def cut(self) -> None:
        """Close at once, with a reset: without lingering, the kernel sends that instead of an end."""
        end: socket.socket = self.writer.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
