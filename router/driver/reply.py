"""Reply: the client's answer as it forms from decode's bytes.

Nothing leaves before the answer is known to be good: a stream with its first event that is no error, anything else when
it is whole (or has outgrown MAX_HELD_BYTES). Until then a failure can still be answered with an HTTP status, or cured
by a retry.
"""

from __future__ import annotations

from time import monotonic

from router.contract.errors import Blame, LegBroken
from router.core.lifecycle import Edge
from router.core.opening import first_event, payload_of, tells_failure
from router.core.tail import Tail, ended_well
from router.driver.facts import Facts
from router.driver.ports import ClientPort
from router.legs.answer import (
    Answer,
    Mark,
    Verdict,
    client_headers,
    is_encoded,
    is_stream,
    judge,
    judge_event,
    stream_headers,
)
from router.legs.connection import Headers, TakeChunk
from router.legs.leg import Leg

MAX_HELD_BYTES = 1024 * 1024

Edges = tuple[Edge, ...]
_NOTHING: Edges = ()
_BEGUN: Edges = (Edge.DECODE_STREAMING,)
_DONE: Edges = (Edge.DECODE_DONE,)
_BEGUN_AND_DONE: Edges = (Edge.DECODE_STREAMING, Edge.DECODE_DONE)
_WHOLE: Edges = (Edge.DECODE_WHOLE,)
_NO_MORE = b"[DONE]"


class Reply:
    """Holds decode's bytes back until they may go, then lets them through."""

    # Defaults of the class cost nothing per request.
    sse = False
    """The answer is a stream of events."""
    readable = False
    """These events are not compressed: their end can be judged, and one of ours may follow."""
    tail = b""
    """The last bytes of an answer that has ended."""
    told: Headers | None = None
    """Headers that the client gets besides."""
    engine_headers: Headers | None = None
    """The head of decode's answer as it came; None before."""
    passed: Tail | None = None
    """How the stream came; None for an answer that was held until it was whole."""
    _status = 0
    _held_bytes = 0
    _held_at = 0.0
    _last = b""

    def __init__(self, client: ClientPort) -> None:
        self._client = client
        self._held: list[bytes] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the body so far; of an answer that failed before it began, none."""
        return self.passed.num_bytes if self.passed is not None else len(self.tail)

    @property
    def opening(self) -> bytes:
        """What has come of an answer that is known to be good, before any of it has gone."""
        return self._last or b"".join(self._held)

    def chunk_taker(self, facts: Facts) -> TakeChunk | None:
        """Does for a whole chunk of an answer that has begun what `feed` does, for less; None where it cannot be done.

        `facts` are told when the last one came.
        """
        tail, write = self.passed, self._client.chunk_writer()
        if tail is None or write is None:
            return None
        feed = tail.feed

        def take(chunk: bytes, start: int) -> None:
            facts.last_byte_at = at = monotonic()
            feed(chunk[start:-2], at)
            write(chunk)

        return take

    def feed(self, leg: Leg, body: bytes, ended: bool, at: float) -> Edges | Verdict:
        """What these bytes of decode's answer mean: edges for the Lifecycle, or the failure that they are.

        Bytes of an answer that has begun go straight to the client; the last ones wait for `serve`.

        Args:
            at: when they came, monotonic seconds.
        """
        tail = self.passed
        if tail is None:
            return self._hold(leg, body, ended, at)
        tail.feed(body, at)
        if not ended:
            self._client.write(body, ended=False)
            return _NOTHING
        self.tail = tail.read()
        if self.readable and not ended_well(self.tail):
            if body:
                self._client.write(body, ended=False)
            return _broken("ended its stream in the middle")
        self._last = body
        return _DONE

    def _hold(self, leg: Leg, body: bytes, ended: bool, at: float) -> Edges | Verdict:
        if self.engine_headers is None:
            # Not the leg itself: it knows the exchange that this belongs to, and a cycle waits for a collection.
            self._status, self.engine_headers = leg.status, leg.headers
            self.sse = is_stream(leg.headers)
            self.readable = self.sse and not is_encoded(leg.headers)
        good = 200 <= leg.status < 300
        if ended:
            whole = b"".join((*self._held, body)) if self._held else body
            return self._end_whole(whole, at) if good else judge(Blame.DECODE, leg.status, leg.headers, whole)
        if body:
            self._held.append(body)
            self._held_bytes += len(body)
            self._held_at = at
        if good and self._held_bytes and (self.sse or self._held_bytes > MAX_HELD_BYTES):
            # The usual case is told without a call: whole events, none of which can be an error.
            if not self.readable or (body[:7] == b"data: {" and body[-2:] == b"\n\n" and b'"error"' not in body):
                return _BEGUN
            return self._read_opening()
        if self._held_bytes > MAX_HELD_BYTES:
            return _broken(f"answered {leg.status} with more than {MAX_HELD_BYTES} bytes")
        return _NOTHING

    def _read_opening(self) -> Edges | Verdict:
        held = b"".join(self._held)
        if len(held) > MAX_HELD_BYTES:
            return _BEGUN
        self._held = [held]
        event = first_event(held)
        return _NOTHING if event is None else _judge_opening(event) or _BEGUN

    def _end_whole(self, whole: bytes, at: float) -> Edges | Verdict:
        if not whole:
            return _broken("answered nothing")
        self._last = self.tail = whole
        if not self.sse:
            return _WHOLE
        tail = Tail()
        tail.feed(whole, at)
        if self.readable:
            failure = _judge_opening(first_event(whole + b"\n\n") or b"")
            if failure is not None:
                return failure
            if not ended_well(whole):
                return _broken("ended its stream in the middle")
        self.passed = tail
        return _BEGUN_AND_DONE

    def deliver(self) -> int:
        """The client gets the whole answer; returns the HTTP status."""
        assert self.engine_headers is not None
        headers = client_headers(self.engine_headers)
        self._client.answer(Answer(self._status, headers if self.told is None else headers + self.told, self._last))
        return self._status

    def commit(self) -> int:
        """The client gets the head, and what was held back; returns the HTTP status."""
        engine_headers = self.engine_headers
        assert engine_headers is not None
        length = None
        if not self.sse:
            announced = dict(engine_headers).get(b"content-length")
            length = int(announced) if announced is not None else None
        # A stream is chunked even when it came as a whole: clients read it as one.
        headers = stream_headers(engine_headers) if self.sse else client_headers(engine_headers)
        self._client.begin(self._status, headers if self.told is None else headers + self.told, length)
        if self.passed is None:
            held = b"".join(self._held)
            self._held.clear()
            self.passed = Tail()
            self.passed.feed(held, self._held_at)
            self._client.write(held, ended=False)
        return self._status

    def serve(self) -> None:
        """The client gets the last bytes and the end of its answer."""
        self._client.write(self._last, ended=True)


def _judge_opening(event: bytes) -> Verdict | None:
    """Why a stream that begins with this event is no answer; None for one that is."""
    if tells_failure(event):
        return judge_event(Blame.DECODE, payload_of(event))
    return _broken("answered nothing") if payload_of(event) == _NO_MORE else None


def _broken(what: str) -> Verdict:
    error = LegBroken(f"The decode instance {what}.", side=Blame.DECODE)
    return Verdict(error, None, error.retryable, Blame.DECODE, Mark.INSTANCE)
