"""An HTTP/1.1 client that stays out of the way of what it measures: callbacks only, and kept-alive connections.

One Exchange is one request and what its answer does over time. A connection carries one Exchange at a time; idle ones
are reused, the most recent first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from router.contract.errors import BadSettings, Blame, LegBroken, LegTimeout, LegUnreachable
from router.contract.hosts import authority, split_http_url


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server: where it listens, and the path that comes before `/v1`."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Read `http://host:port`, with or without a trailing `/v1`.

        Raises:
            BadSettings: not an http or https URL with a host.
        """
        try:
            parts = split_http_url(url)
        except ValueError as error:
            raise BadSettings(f"{url!r} is no server's URL; give something like http://127.0.0.1:8000.") from error
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.hostname or "", parts.port or (443 if tls else 80), tls, prefix)

    @property
    def base_url(self) -> str:
        """The URL before `/v1`, without a trailing slash."""
        return f"{'https' if self.tls else 'http'}://{authority(self.host, self.port)}{self.prefix}"


_IDLE_S = 3.0
"""Below a server's own keep-alive (uvicorn's is 5 s), so that no connection is reused while it is being closed."""

OnBody = Callable[[bytes], None]


class Exchange:
    """One request: `status` once its head is there, each piece of body handed to `on_body`, `ended` at its end."""

    def __init__(self, request: bytes, on_body: OnBody) -> None:
        """`request` is the whole request, head and body."""
        self.request = request
        self.on_body = on_body
        self.status = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Connection(asyncio.Protocol):
    """One connection to the target."""

    def __init__(self) -> None:
        """Not connected yet."""
        self.idle_at = 0.0
        """When its last Exchange ended, by the loop's clock."""
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_open(self) -> bool:
        """True while a request can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, exchange: Exchange) -> None:
        """Write the request; only on an open connection without another Exchange."""
        assert self._transport is not None
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(exchange.request)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("The server's answer is not HTTP/1.1.")

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self._fail("The connection closed before the answer was complete.")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if self._exchange is not None:
            self._exchange.on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        exchange, self._exchange = self._exchange, None
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        if exchange is not None and not exchange.ended.done():
            exchange.ended.set_result(None)

    def _fail(self, sentence: str) -> None:
        exchange, self._exchange = self._exchange, None
        self.abort()
        if exchange is not None and not exchange.ended.done():
            exchange.ended.set_exception(LegBroken(sentence, side=Blame.ROUTER))


class Client:
    """Connections to one Target."""

    def __init__(self, target: Target, api_key: str | None = None) -> None:
        """Nothing is connected yet."""
        self._target = target
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: list[Connection] = []
        self._key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""

    def request(self, path: str, body: bytes) -> bytes:
        """Return the whole POST of a JSON `body` to `path`, which begins with `/v1`."""
        target = self._target
        head = (
            f"POST {target.prefix}{path} HTTP/1.1\r\nHost: {authority(target.host, target.port)}\r\n{self._key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body

    async def perform(self, exchange: Exchange, timeout_s: float) -> None:
        """Return when the answer is complete.

        Raises:
            LegUnreachable: no connection could be made.
            LegBroken: the connection ended early, or the answer is not HTTP.
            LegTimeout: the answer was not complete after `timeout_s`.
        """
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connection()
                connection.begin(exchange)
                await exchange.ended
        except TimeoutError as error:
            raise LegTimeout(f"No complete answer within {timeout_s:g} s.", side=Blame.ROUTER) from error
        finally:
            if connection is not None:
                self._put_back(connection, exchange)

    def close(self) -> None:
        """Close all idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and loop.time() - connection.idle_at < _IDLE_S:
                return connection
            connection.abort()
        target = self._target
        try:
            _, connection = await loop.create_connection(Connection, target.host, target.port, ssl=self._tls)
        except OSError as error:
            raise LegUnreachable(f"{target.base_url} cannot be connected: {error}.", side=Blame.ROUTER) from error
        return connection

    def _put_back(self, connection: Connection, exchange: Exchange) -> None:
        whole = exchange.ended.done() and not exchange.ended.cancelled() and exchange.ended.exception() is None
        if whole and connection.is_open:
            connection.idle_at = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()
