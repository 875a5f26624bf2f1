"""A proxy before a real server that can cut connections between a request and its answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit


class CutProxy:
    """Listens on a socket file and carries bytes both ways.

    While `swallow` is set, what the server answers is thrown away and the client's connection closed: the command has
    been executed and nobody knows. While `open` is clear nothing is carried either way, and no connection notices.
    `delay_s` holds back each piece that the server answers.
    """

    def __init__(self, path: Path, target_url: str) -> None:
        self.url = f"unix://{path}"
        self.swallow = False
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0
        self.accepted = 0
        self._path = path
        self._target = urlsplit(target_url)
        self._server: asyncio.Server | None = None

    def lead_to(self, target_url: str) -> None:
        """Connections that are made from here on reach this server, as after a change of a DNS name."""
        self._target = urlsplit(target_url)

    async def __aenter__(self) -> CutProxy:
        self._server = await asyncio.start_unix_server(self._carry, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        upstream, to_upstream = await self._reach()
        up = asyncio.create_task(self._pump(reader, to_upstream))
        with suppress(ConnectionError):
            while answer := await upstream.read(65536):
                await self.open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.swallow:
                    break
                writer.write(answer)
                await writer.drain()
        up.cancel()
        writer.close()
        to_upstream.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.hostname, self._target.port)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while request := await reader.read(65536):
                await self.open.wait()
                writer.write(request)
                await writer.drain()
        writer.close()
