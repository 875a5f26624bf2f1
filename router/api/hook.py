"""Hook: inference requests are taken out of uvicorn's HTTP protocol before it makes ASGI of them.

The plain case (POST, HTTP/1.1, Content-Length within the limit, nothing pipelined before it) is carried by callbacks
from socket to socket. Everything else goes the ordinary way, where `front` carries the same exchange behind ASGI.

While a hooked request runs, its HookClient stands where uvicorn keeps the running cycle, so uvicorn's own rules for
pipelining, keep-alive, disconnects and shutdown hold for it. What is leant on of uvicorn 0.54 (`cycle` and its
attributes, `pipeline`, `flow`, `on_response_complete`, the parser callbacks) is listed and tested in
tests/unit/router/api/test_hook.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.api.client import HookClient
from router.api.door import HOT_PATHS, Door
from router.api.problems import envelope, problem_headers, status_line
from router.contract.errors import BadRequest, HeadersTooLarge, RequestTimeout, TandemError

if TYPE_CHECKING:
    from typing import Any


class DoorProtocol(HttpToolsProtocol):
    """uvicorn's protocol with our limits on what may arrive, and our envelope on what it refuses itself."""

    # Any: uvicorn's own signature.
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        door: Door,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.door = door
        self._in_head = False
        self._head_bytes = 0
        self._oversized = False
        self._arrival: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first request's time to arrive starts here."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._await_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        """No request is awaited any more."""
        self._end_arrival()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; refuse a head that is too large, and start the clock of a request that is not whole yet."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if self._oversized or (self._in_head and self._head_bytes > self.door.limits.max_head_bytes):
            self.refuse_connection(
                HeadersTooLarge(
                    f"The request head is over {self.door.limits.max_head_bytes} bytes; send fewer headers."
                )
            )
        elif self._in_head:
            self._await_arrival()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect, and count."""
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """A head is complete: start it, unless it is too large."""
        self._in_head = False
        self._end_arrival()
        if self._head_bytes > self.door.limits.max_head_bytes:
            self._oversized = True
        else:
            self.start_request()

    def start_request(self) -> None:
        """The request whose head is complete is uvicorn's."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The body of a refused request is dropped."""
        if not self._oversized:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a refused request is dropped."""
        if not self._oversized:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed is refused in our envelope."""
        self.refuse_connection(BadRequest(msg))

    def refuse_connection(self, error: TandemError) -> None:
        """The error is the last thing that this connection says."""
        if self.transport.is_closing():
            return
        body = envelope(error)
        lines = b"".join(b"%b: %b\r\n" % header for header in problem_headers(error))
        self.transport.write(
            b"%b%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status_line(error.http_status), lines, len(body), body)
        )
        self.transport.close()

    def _await_arrival(self) -> None:
        if self._arrival is None:
            self._arrival = self.loop.call_later(self.door.limits.arrival_s, self._on_late)

    def _end_arrival(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _on_late(self) -> None:
        self._arrival = None
        self.refuse_connection(RequestTimeout("The request did not arrive in time; send it again."))


class HookProtocol(DoorProtocol):
    """Carries plain inference requests itself."""

    # Any: uvicorn's own signature.
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        door: Door,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, door=door)
        self._receiving: HookClient | None = None
        self._whole: HookClient | None = None
        self._running: HookClient | None = None

    def data_received(self, data: bytes) -> None:
        """Parse; a hooked request that is whole is let in once the parser is done with this read."""
        super().data_received(data)
        client = self._whole
        if client is not None:
            self._whole = None
            self._running = client
            client.enter(self.door)
        elif self._receiving is not None:
            self._await_arrival()

    def start_request(self) -> None:
        """Take the request if it is a plain one; see the module's docstring."""
        endpoint = HOT_PATHS.get(self.url)
        busy = self.cycle is not None and not self.cycle.response_complete
        if endpoint is None or busy or self.expect_100_continue or self.parser.get_method() != b"POST":
            super().start_request()
            return
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"")
        plain = length.isdigit() and int(length) <= self.door.limits.max_body_bytes
        if not plain or self.parser.get_http_version() != "1.1" or self.parser.should_upgrade():
            super().start_request()
            return
        client = HookClient(self, endpoint, headers, keep_alive=self.parser.should_keep_alive())
        self._receiving = client
        self.cycle = cast(RequestResponseCycle, client)

    def on_body(self, body: bytes) -> None:
        """Collect the body of a hooked request."""
        if self._receiving is not None:
            self._receiving.pieces.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A hooked request is whole."""
        if self._receiving is not None:
            self._end_arrival()
            self._whole, self._receiving = self._receiving, None
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running exchange that its client has left."""
        client, self._running = self._running, None
        self._receiving = self._whole = None
        super().connection_lost(exc)
        if client is not None:
            client.leave()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        if self._running is not None:
            self._running.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self._running is not None:
            self._running.resume()

    def end_hooked(self, client: HookClient) -> None:
        """The answer of `client` is complete; uvicorn goes on with the connection."""
        self._running = None
        if not client.keep_alive:
            self.transport.close()
        self.on_response_complete()
