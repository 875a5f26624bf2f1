"""Connection: one HTTP/1.1 connection to one engine, which carries one leg at a time.

HTTP is parsed by httptools (llhttp); its callbacks only collect, and the leg hears of the outcome after the whole read
has been parsed, so that a leg may cancel, send or re-use without ever running inside the parser. All body pieces of one
read are handed over as one bytes object, already de-chunked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, cast

import httptools

if TYPE_CHECKING:
    from router.legs.pool import LegPool

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order of arrival."""

MAX_HEAD_BYTES = 64 * 1024

_CRLF = b"\r\n"


@lru_cache(maxsize=4096)
def _size_line(num_bytes: int) -> bytes:
    """The first line of the one chunk that is so long with its framing, empty if there is none (RFC 9112, 7.1).

    It has neither extensions nor needless zeros, and its chunk is not the last one, which is empty.
    """
    for digits in range(1, 9):
        size = num_bytes - digits - 2 * len(_CRLF)
        line = b"%x\r\n" % max(size, 0)
        if size > 0 and len(line) == digits + len(_CRLF):
            return line
    return b""


TakeChunk = Callable[[bytes, int], None]
"""Takes a whole chunk with its framing; its content begins at that offset and ends 2 bytes before the end."""


class Listener(Protocol):
    """The leg that a connection carries."""

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """Bytes of the body (perhaps none) have arrived; `connection.status` and `.headers` are set.

        With `ended` the answer is complete and the connection no longer the leg's.
        """

    def on_lost(self, connection: Connection, reason: str) -> None:
        """The connection has ended before the answer did; it is no longer the leg's."""


class Connection(asyncio.Protocol):
    """A connection that is carrying a leg, idle in its pool, or dead."""

    __slots__ = (
        "_between",
        "_chunk_ended",
        "_complete",
        "_excess",
        "_head_bytes",
        "_keeps",
        "_parser",
        "_pieces",
        "_pool",
        "_transport",
        "answered",
        "headers",
        "idle_since",
        "leg",
        "status",
        "take_chunk",
        "uses",
    )

    def __init__(self, pool: LegPool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._complete = False
        self._excess = False
        self._keeps = False
        self.leg: Listener | None = None
        self.take_chunk: TakeChunk | None = None
        """Where a running stream goes past the leg, as long as each read brings one whole chunk; the usual case."""
        self._between = False
        """The next byte, if there is a `take_chunk`, is the first of a chunk."""
        self._chunk_ended = False
        self.answered = False
        """The head of an answer to the current leg has arrived."""
        self.status = 0
        self.headers: Headers = []
        self.idle_since = 0.0
        """Monotonic seconds since when it is idle; meaningful in the pool only."""
        self.uses = 0
        """Legs that were sent over it; a connection that closes is suspect only from the second on."""

    # What legs and the pool call.

    @property
    def usable(self) -> bool:
        """True when a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, leg: Listener, request: bytes) -> None:
        """The request is on its way; its answer goes to `leg`."""
        self.leg = leg
        self.uses += 1
        self.answered = self._complete = False
        self._head_bytes = 0
        if self._transport is not None:  # one that has just died reports so by connection_lost
            self._transport.write(request)

    def abort(self) -> None:
        """Closed at once, without a word to the leg; this is how an engine learns that nobody listens."""
        self.leg = self.take_chunk = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Reads nothing more, so that TCP holds the engine back."""
        if self.usable and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; TCP_NODELAY is set by the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse one read, then tell the leg."""
        if self._between and self.take_chunk is not None:
            # Nothing of a whole chunk needs to be known here, and the parser stands between chunks before and after it.
            line = _size_line(len(data))
            if line and (data.startswith(line) or data[: len(line)].lower() == line) and data.endswith(_CRLF):
                self.take_chunk(data, len(line))
                return
        leg = self.leg
        if leg is None:
            self.abort()  # bytes that nobody has asked for
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("it answered something that is not HTTP/1.1")
            return
        pieces = self._pieces
        self._between = self._chunk_ended and data.endswith(b"\r\n")  # else half of the next size has come as well
        if self._complete:
            self._pieces = []
            self.leg = self.take_chunk = None
            leg.on_answer(self, pieces[0] if len(pieces) == 1 else b"".join(pieces), True)
            if self._keeps and not self._excess:
                self._pool.put(self)
            else:
                self.abort()
        elif pieces:
            self._pieces = []
            self._head_bytes = 0
            leg.on_answer(self, pieces[0] if len(pieces) == 1 else b"".join(pieces), False)
        else:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                part = "trailer section" if self.answered else "head"
                self._fail(f"the {part} of its answer exceeds {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the leg, unless the answer was one that ends with its connection."""
        self._transport = None
        self._pool.forget(self)
        leg, self.leg, self.take_chunk = self.leg, None, None
        if leg is None:
            return
        if self.answered and exc is None and not self._is_framed():
            leg.on_answer(self, b"", True)
        else:
            leg.on_lost(self, "it closed the connection" if exc is None else f"the connection broke ({exc})")

    def _is_framed(self) -> bool:
        """False for an answer whose body ends with the connection (RFC 9112, 6.3)."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _fail(self, reason: str) -> None:
        leg = self.leg
        self.abort()
        if leg is not None:
            leg.on_lost(self, reason)

    # What the parser calls. Interim answers (1xx) come by as answers without a body.

    def on_message_begin(self) -> None:
        """A second answer to one request makes the connection unfit for another."""
        if self._complete:
            self._excess = True
        else:
            self.headers = []
        self._chunk_ended = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect the head. What follows it are trailers, or the head of an answer that nobody has asked for."""
        if not self.answered:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Note the status."""
        status = self._parser.get_status_code()
        if status >= 200 and not self._complete:
            self.status = status
            self.answered = True

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        if not self._complete:
            self._pieces.append(body)

    def on_chunk_header(self) -> None:
        """A chunk has begun."""
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        """A chunk has ended, perhaps the last, empty one."""
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was an interim one."""
        if self.answered:
            self._complete = True
            self._keeps = self._parser.should_keep_alive()  # llhttp forgets it once the next answer could begin
