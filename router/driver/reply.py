"""Reply: the client's answer as it forms from decode's bytes.

Nothing leaves before the answer is known to be good: a stream with its first event, anything else when it is whole (or
has outgrown MAX_HELD_BYTES). Until then a failure can still be answered with an HTTP status, or cured by a retry.
"""

from __future__ import annotations

from router.contract.errors import Blame, LegBroken
from router.core.lifecycle import Edge
from router.core.record import Record
from router.core.tail import Tail, completion_tokens, ended_well, tells_error
from router.driver.ports import ClientPort
from router.legs.answer import Verdict, client_headers, header_of, judge
from router.legs.connection import Headers

MAX_HELD_BYTES = 1024 * 1024

Edges = tuple[Edge, ...]
_NOTHING: Edges = ()
_BEGUN: Edges = (Edge.DECODE_STREAMING,)
_DONE: Edges = (Edge.DECODE_DONE,)
_WHOLE: Edges = (Edge.DECODE_STREAMING, Edge.DECODE_DONE)


class Reply:
    """Holds bytes back until they may go, then lets them through."""

    __slots__ = ("_begun", "_client", "_headers", "_held", "_held_bytes", "_last", "_status", "_tail", "_whole", "sse")

    def __init__(self, client: ClientPort) -> None:
        self._client = client
        self._tail = Tail()
        self.restart()

    def restart(self) -> None:
        """Forget what another attempt has brought."""
        self._status = 0
        self._headers: Headers = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._begun = False
        self._whole = False
        self._last = b""
        self.sse = False
        """The answer is a stream of events."""

    def feed(self, status: int, headers: Headers, body: bytes, *, ended: bool) -> Edges | Verdict:
        """What these bytes of decode's answer mean: edges for the Lifecycle, or the failure that they are.

        Bytes of an answer that has begun go straight to the client; the last ones wait for `serve`.
        """
        if self._begun:
            return self._go_on(body, ended=ended)
        if not self._status:
            self._status, self._headers = status, headers
            self.sse = header_of(headers, b"content-type").startswith(b"text/event-stream")
        if body:
            self._held.append(body)
            self._held_bytes += len(body)
        good = 200 <= status < 300
        if ended:
            return self._end_whole(good)
        if good and self._held_bytes and (self.sse or self._held_bytes > MAX_HELD_BYTES):
            return _BEGUN
        if self._held_bytes > MAX_HELD_BYTES:
            return _broken(f"answered {status} with more than {MAX_HELD_BYTES} bytes")
        return _NOTHING

    def _go_on(self, body: bytes, *, ended: bool) -> Edges | Verdict:
        self._tail.feed(body)
        if not ended:
            self._client.write(body, ended=False)
            return _NOTHING
        if self.sse and not ended_well(self._tail.read()):
            if body:
                self._client.write(body, ended=False)
            return _broken("ended its stream in the middle")
        self._last = body
        return _DONE

    def _end_whole(self, good: bool) -> Edges | Verdict:
        body = b"".join(self._held)
        if not good:
            return judge(Blame.DECODE, self._status, self._headers, body)
        if not body:
            return _broken("answered nothing")
        self._tail.feed(body)
        if self.sse and not ended_well(self._tail.read()):
            return _broken("ended its stream in the middle")
        self._last = body
        self._whole = True
        return _WHOLE

    def commit(self) -> int:
        """The client gets the head, and what was held back; returns the HTTP status."""
        self._begun = True
        headers = client_headers(self._headers)
        if self._whole:
            # A stream is chunked even when it came as a whole: clients read it as one.
            self._client.begin(self._status, headers, None if self.sse else len(self._last))
            return self._status
        length = b"" if self.sse else header_of(self._headers, b"content-length")
        self._client.begin(self._status, headers, int(length) if length else None)
        body = b"".join(self._held)
        self._held.clear()
        self._tail.feed(body)
        self._client.write(body, ended=False)
        return self._status

    def serve(self) -> None:
        """The client gets the last bytes and the end of its answer."""
        self._client.write(self._last, ended=True)

    def account(self, record: Record) -> bool:
        """The record has the counts that the answer's end tells. Returns True when the answer tells of an error."""
        tail = self._tail.read()
        record.num_events = self._tail.num_events
        record.completion_tokens = completion_tokens(tail)
        return tells_error(tail)


def _broken(what: str) -> Verdict:
    error = LegBroken(f"The decode instance {what}.", side=Blame.DECODE)
    return Verdict(error, None, error.retryable, Blame.DECODE)
