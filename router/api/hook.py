"""Hook: inference requests are taken out of uvicorn's HTTP protocol before it makes ASGI of them.

The plain case (POST, HTTP/1.1, Content-Length within the limit, nothing pipelined before it, earlier answers taken) is
carried by callbacks from socket to socket. Everything else goes the ordinary way, where `front` carries the same
exchange behind ASGI.

While a hooked request runs, its HookClient stands where uvicorn keeps the running cycle, so uvicorn's own rules for
pipelining, disconnects and shutdown hold for it. What is leant on of uvicorn 0.54 (`cycle` and its attributes, `url`,
`headers`, `pipeline`, `flow`, `on_response_complete`, `_start_asgi_task`, the parser callbacks) is listed and tested in
tests/unit/router/api/test_hook.py.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from router.api.client import HookClient
from router.api.door import HOT_PATHS, Door
from router.api.protocol import DoorProtocol


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
        self._idle = door.router.idle
        self._gate, self._escorted = door.gate, door.escorted
        self._receiving: HookClient | None = None
        self._whole: HookClient | None = None
        self._running: HookClient | None = None
        self.due_at = 0.0
        """When the connection has been idle for long enough, monotonic seconds."""

    def data_received(self, data: bytes) -> None:
        """Parse; a hooked request that is whole is let in once the parser is done with this read."""
        self._idle.discard(self)
        super().data_received(data)
        client = self._whole
        if client is not None:
            self._whole = None
            self._running = client
            client.enter(self.door)
        elif self._receiving is not None:
            self.await_arrival()

    def start_request(self) -> None:
        """Take the request if it is a plain one; see the module's docstring."""
        endpoint = HOT_PATHS.get(self.url)
        # ASGI waits with its answer until the client has taken earlier ones.
        free = (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused
        if endpoint is not None and free:
            headers, parser = dict(self.headers), self.parser
            keep_alive = parser.should_keep_alive()
            # Without a Connection header only HTTP/1.1 keeps a connection; asking for the version costs more.
            modern = (keep_alive and b"connection" not in headers) or parser.get_http_version() == "1.1"
            length = int(headers.get(b"content-length", b"-1"))
            within = 0 <= length <= self.door.limits.max_body_bytes
            if within and modern and self._escorted.isdisjoint(headers) and parser.get_method() == b"POST":
                caller = self._gate.caller(headers)
                if caller is not None:
                    self._receiving = client = HookClient(self, endpoint, headers, caller, keep_alive=keep_alive)
                    self.cycle = cast(RequestResponseCycle, client)
                    return
        super().start_request()

    def on_body(self, body: bytes) -> None:
        """Collect the body of a hooked request."""
        if self._receiving is not None:
            self._receiving.pieces.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A hooked request is whole."""
        if self._receiving is not None:
            self.end_arrival()
            self._whole, self._receiving = self._receiving, None
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running exchange that its client has left."""
        client, self._running = self._running, None
        self._receiving = self._whole = None
        self._idle.discard(self)
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
        """The answer of `client` is complete: the connection waits for another request, or uvicorn goes on with it."""
        self._running = None
        if client.keep_alive and not self.pipeline:
            # uvicorn would start a timer here and stop it when the next request comes; the sweep costs neither.
            self.due_at = monotonic() + self.timeout_keep_alive
            self._idle.add(self)
            return
        if not client.keep_alive:
            self.close()
        self.on_response_complete()

    def on_due(self, now: float) -> None:
        """The connection has been idle for too long."""
        self._idle.discard(self)
        self.timeout_keep_alive_handler()
