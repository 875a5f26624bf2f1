"""A TCP proxy before a real server that can go silent with its connections left open, as a cut cable does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

PIECE_BYTES = 65536


class SilentProxy:
    """Listens at `host:port` and carries bytes both ways.

    While `silent`, no byte passes in either direction and nobody is told: connections are accepted and stay open. The
    listener can be closed while the server is down, so that callers are refused as they would be without a proxy.
    """

    def __init__(self, host: str, port: int, target_url: str) -> None:
        self.host, self.port = host, port
        self._target = urlsplit(target_url)
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._forgotten: list[asyncio.Event] = []
        self._carrying: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.StreamWriter] = set()

    @property
    def silent(self) -> bool:
        return not self._open.is_set()

    async def listen(self) -> None:
        """Callers are accepted."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.host, self.port, reuse_address=True)

    def refuse(self) -> None:
        """New callers are refused; those that are connected stay."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def fall_silent(self) -> None:
        """No byte passes any more."""
        self._open.clear()

    def heal(self, *, reset: bool) -> None:
        """Bytes pass again; with `reset` all connections of before are reset, else what was held back is delivered."""
        self._open.set()
        if reset:
            self.reset()

    def reset(self) -> None:
        """All connections are reset."""
        for writer in list(self._transports):
            writer.transport.abort()

    def forget(self) -> None:
        """Connections of now stay silent for ever, as if the network had dropped them; new ones are carried."""
        self._open.clear()
        self._forgotten.append(self._open)
        self._open = asyncio.Event()
        self._open.set()

    async def aclose(self) -> None:
        """Nothing of the proxy is left."""
        self.refuse()
        for gate in (self._open, *self._forgotten):
            gate.set()
        while self._carrying:
            self.reset()
            await asyncio.wait(set(self._carrying), timeout=0.05)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        self._transports.add(writer)
        gate = self._open
        try:
            await gate.wait()
            upstream, to_upstream = await self._reach()
        except OSError:
            writer.transport.abort()
        else:
            self._transports.add(to_upstream)
            await asyncio.gather(_pump(reader, to_upstream, gate), _pump(upstream, writer, gate))
            self._transports.discard(to_upstream)
        finally:
            self._transports.discard(writer)
            self._carrying.discard(task)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.hostname, self._target.port)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    """Carry one direction until its sender ends; an end is passed on as it came: closed, or reset."""
    try:
        while piece := await reader.read(PIECE_BYTES):
            await gate.wait()
            writer.write(piece)
            await writer.drain()
        await gate.wait()
        writer.close()
    except OSError:
        await gate.wait()
        with suppress(RuntimeError):
            writer.transport.abort()
