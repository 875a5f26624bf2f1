"""DoorProtocol: uvicorn's HTTP protocol with our limits on what may arrive, and our envelope on what is refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.api.door import Door, name_of
from router.api.front import ABORT_EXTENSION
from router.api.problems import envelope, problem_headers, status_line
from router.contract.errors import BadRequest, HeadersTooLarge, RequestTimeout, TandemError

_HEADER_BYTES = 4
"""Of each header line beside name and value."""
MAX_BEHIND = 8
"""Requests that may wait behind a running one before no more is read of their connection."""


class DoorProtocol(HttpToolsProtocol):
    """Every request must arrive in time, with a head of bounded size."""

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
        self._max_head_bytes = door.limits.max_head_bytes
        self._in_head = False
        """What arrives is a head or trailers, no body."""
        self._in_trailers = False
        """A chunk has begun of which no byte has come: it may be the last one, which only trailers follow."""
        self._head_bytes = 0
        """Upper bound of the size so far of a head or trailers: all bytes of the reads that they came in."""
        self._trailer_bytes = 0
        self._refusal: TandemError | None = None
        """Why the request that is arriving, and with it the connection, is refused."""
        self._arrival: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._carried: RequestResponseCycle | None = None
        """Whose request ASGI carries out; `cycle` is that of the last one to arrive, which may wait behind it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first request's time to arrive starts here."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.await_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        """No request is awaited any more, and nothing keeps this object alive."""
        self.end_arrival()
        self._end_stall()
        carried, self._carried = self._carried, None
        if carried is not None and not carried.response_complete:  # uvicorn tells only the last one to arrive
            carried.disconnected = True
            carried.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves its timer to a connection that was reset

    def data_received(self, data: bytes) -> None:
        """Parse; refuse a head that is too large, and start the clock of one that is not whole yet."""
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._head_bytes = self._head_bytes + len(data) if self._in_head else len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.refuse_connection(BadRequest("What arrived is not an HTTP request that can be served."))
            return
        except httptools.HttpParserUpgrade:
            pass  # nothing is offered to upgrade to: the request is an ordinary one, started or refused by now
        if self._refusal is not None:
            self.refuse_connection(self._refusal)
        elif self._in_head:
            self._check_head()

    def _check_head(self) -> None:
        if self._head_bytes > max(self._max_head_bytes, _LARGEST_READ_BYTES):
            self.refuse_connection(self._too_large())
        elif not self._in_trailers or self.cycle.response_complete:
            self.await_arrival()  # else whoever reads the body has an eye on the time

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"The request head is over {self._max_head_bytes} bytes; send fewer headers.")

    def on_message_begin(self) -> None:
        """A head begins. The scope waits until it is known that ASGI needs one."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect the head, names in lower case. Trailers are no headers (RFC 9110, 6.5.1): counted and dropped."""
        if self._in_trailers:
            self._trailer_bytes += len(name) + len(value) + _HEADER_BYTES
            if self._trailer_bytes > self._max_head_bytes:
                self._refusal = self._too_large()
            return
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A head is complete: start its request, unless it is too large."""
        self._in_head = False
        if self._head_bytes > self._max_head_bytes and self._measure_head() > self._max_head_bytes:
            self._refusal = self._too_large()
            return
        self.end_arrival()
        self.start_request()

    def _measure_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + _HEADER_BYTES for name, value in self.headers)

    def start_request(self) -> None:
        """The request whose head is complete is uvicorn's, with the scope that uvicorn makes when a message begins."""
        url, headers = self.url, self.headers
        if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers):
            self._refusal = BadRequest("The only Transfer-Encoding that can be read is chunked.")
            return
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = (b"expect", b"100-continue") in ((n, v.lower()) for n, v in headers)
        # uvicorn types extensions as dictionaries; ASGI leaves a server's own to the server.
        self.scope["extensions"] = {ABORT_EXTENSION: self.transport.abort}  # type: ignore[dict-item]
        super().on_headers_complete()
        if 0 < len(self.pipeline) < MAX_BEHIND:
            self.flow.resume_reading()  # else nobody would see that the client leaves before the answer begins

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._carried = cycle
        super()._start_asgi_task(cycle, app)

    def on_chunk_header(self) -> None:
        """A chunk begins; unless a byte of it follows, it is the last one."""
        self._in_head = self._in_trailers = self._refusal is None

    def on_body(self, body: bytes) -> None:
        """The body of a refused request is dropped; so is the rest of one that has been answered, for a while."""
        if self._refusal is not None:
            return
        if self._in_trailers:
            self._in_head = self._in_trailers = False
            self._head_bytes = 0
        if self.cycle.response_complete:
            self.await_arrival()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a refused request is dropped."""
        if self._refusal is None:
            self._in_head = self._in_trailers = False
            self._trailer_bytes = 0
            self.end_arrival()
            super().on_message_complete()

    def refuse_connection(self, error: TandemError) -> None:
        """The error is the last thing that this connection says, unless it is about trailers of what is answered."""
        if self.transport.is_closing():
            return
        if self._in_trailers and self.cycle.response_complete:
            self.close()
            return
        body, request_id = envelope(error), name_of(dict(self.headers or ()), self.door.router)
        headers = [*problem_headers(error), (b"x-request-id", request_id.encode("ascii"))]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(
            b"%b%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status_line(error.http_status), lines, len(body), body)
        )
        self.close()

    def await_arrival(self) -> None:
        """A request that has begun, or a first one, must be whole before the time for arriving is up."""
        if self._arrival is None:
            self._arrival = self.loop.call_later(self.door.limits.arrival_s, self._on_late)

    def end_arrival(self) -> None:
        """What was awaited has arrived."""
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _on_late(self) -> None:
        self._arrival = None
        if not self._in_head and self.cycle is not None and self.cycle.response_complete:
            self.close()  # it goes on sending what has been refused
            return
        self.refuse_connection(RequestTimeout("The request did not arrive in time; send it again."))

    # What is sent must be taken, whether or not anything of the request still runs.

    def close(self) -> None:
        """Closed once the client has what it was sent, or takes nothing more."""
        self.transport.close()
        if self._unsent_bytes():
            self._await_taking()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come; see `close`."""
        if not self.transport.is_closing():
            self.close()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        self._end_stall()

    def _await_taking(self) -> None:
        """A client that takes nothing for as long as it may is gone."""
        if self._stall is None:
            stalled_s = self.door.router.deadlines.stalled_s
            self._stall = self.loop.call_later(stalled_s, self._check_taking, self._unsent_bytes())

    def _check_taking(self, before_bytes: int) -> None:
        self._stall = None
        if self._unsent_bytes() >= before_bytes:
            self.transport.abort()
        else:
            self._await_taking()

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()


_LARGEST_READ_BYTES = 256 * 1024
"""What the event loop reads at once: the head's first read may hold so much of something else."""
