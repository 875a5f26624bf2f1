"""HookClient: the client of a hooked request, written to as bytes on its own connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from router.api.door import Door
from router.api.problems import envelope, problem_headers, status_line
from router.api.sse import error_event
from router.contract.errors import Draining, TandemError
from router.core.intake import Endpoint
from router.driver.exchange import Exchange
from router.legs.answer import Answer
from router.legs.connection import Headers

if TYPE_CHECKING:
    from router.api.hook import HookProtocol


class _NoEvent:
    """Stands for the asyncio.Event of uvicorn's cycle, for which nobody waits here."""

    def set(self) -> None:
        """Nobody to wake."""


_NO_EVENT = _NoEvent()


class HookClient:
    """A ClientPort that also looks to uvicorn like a running RequestResponseCycle."""

    __slots__ = (
        "_caller",
        "_chunked",
        "_endpoint",
        "_exchange",
        "_head",
        "_headers",
        "_id",
        "_protocol",
        "disconnected",
        "keep_alive",
        "pieces",
        "response_complete",
    )

    message_event = _NO_EVENT
    # uvicorn reads keep_alive, response_complete and message_event, and sets disconnected and keep_alive.
    disconnected: bool

    def __init__(
        self, protocol: HookProtocol, endpoint: Endpoint, headers: dict[bytes, bytes], caller: str, *, keep_alive: bool
    ) -> None:
        self._protocol = protocol
        self._endpoint = endpoint
        self._headers = headers
        self._caller = caller
        self._exchange: Exchange | None = None
        self._id = b""
        self._head = b""
        self._chunked = False
        self.pieces: list[bytes] = []
        """The request body as it arrives."""
        self.keep_alive = keep_alive
        self.response_complete = False

    # What the protocol calls.

    def enter(self, door: Door) -> None:
        """The request is whole: let it in."""
        pieces, self.pieces = self.pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._exchange = door.enter(self, self._endpoint, self._headers, body, self._caller)

    def leave(self) -> None:
        """The connection is gone."""
        if self._exchange is not None and not self.response_complete:
            self.response_complete = True
            self._exchange.on_client_gone()

    def pause(self) -> None:
        """The connection's write buffer is full."""
        if self._exchange is not None and not self.response_complete:
            self._exchange.on_client_paused()

    def resume(self) -> None:
        """The connection's write buffer has drained."""
        if self._exchange is not None and not self.response_complete:
            self._exchange.on_client_resumed()

    # ClientPort.

    def name(self, request_id: str) -> None:
        """The answer will carry this X-Request-Id."""
        self._id = request_id.encode("ascii")

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        """The head waits for the first body bytes, so that both leave in one write."""
        self._chunked = length is None
        self._head = self._render(status, headers, length)

    def write(self, body: bytes, *, ended: bool) -> None:
        """Write the bytes in the framing that the head has announced."""
        if self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if ended:
                body += b"0\r\n\r\n"
        if self._head:
            body = self._head + body
            self._head = b""
        if body:
            self._protocol.transport.write(body)
        if ended:
            self._end()

    def chunk_writer(self) -> Callable[[bytes], object] | None:
        """The transport's own `write`, for a chunked answer."""
        return self._protocol.transport.write if self._chunked and not self._head else None

    def answer(self, answer: Answer) -> None:
        """Write it as a whole."""
        self._protocol.transport.write(self._render(answer.status, answer.headers, len(answer.body)) + answer.body)
        self._end()

    def refuse(self, error: TandemError) -> None:
        """Write the error in its envelope."""
        if isinstance(error, Draining):
            self.keep_alive = False  # the next request would meet the same
        self.answer(Answer(error.http_status, problem_headers(error), envelope(error)))

    def break_off(self, error: TandemError, *, stream: bool) -> None:
        """End a stream with an error event; cut anything else, since no bytes could make it whole."""
        if stream and self._chunked:
            self.write(error_event(error), ended=True)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Close the connection without another word."""
        self.response_complete = True
        self._protocol.transport.abort()

    def _render(self, status: int, headers: Headers, length: int | None) -> bytes:
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        close = b"" if self.keep_alive else b"connection: close\r\n"
        return b"%b%b%bx-request-id: %b\r\n%b\r\n\r\n" % (status_line(status), lines, close, self._id, framing)

    def _end(self) -> None:
        self.response_complete = True
        self._exchange = None
        self._protocol.end_hooked(self)
