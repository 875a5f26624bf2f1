"""The request log: one JSON line per finished request, written by a thread of its own.

A slow reader of standard output must not stop the event loop, so lines are collected for a moment and handed over in
one piece; what the thread cannot get rid of is dropped and counted, never waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Full, Queue

import msgspec

from router.core.record import Record

FLUSH_S = 0.05
MAX_PIECES = 64
"""Pieces of FLUSH_S each that may wait for a slow reader: about three seconds."""

_ENCODE = msgspec.json.Encoder().encode_into


class _Line(msgspec.Struct, gc=False):
    """What one line says. Milliseconds are counted from the moment the request had been read."""

    at: float
    """Unix seconds at the end."""
    event: str
    request_id: str
    client_id: str
    model: str
    endpoint: str
    stream: bool
    mode: str
    reason: str
    prefill: str
    decode: str
    attempts: int
    status: int
    outcome: str
    code: str
    sent_ms: float
    prefilled_ms: float
    first_byte_ms: float
    total_ms: float
    tokens: int


class RequestLog:
    """Lines of one router. `write` belongs to the event loop."""

    def __init__(self, sink: Callable[[bytes], object], later: Callable[[float, Callable[[], None]], object]) -> None:
        """`sink` takes bytes and may block; `later(seconds, call)` is the event loop's call_later."""
        self._sink = sink
        self._later = later
        self._buffer = bytearray()
        self._queue: Queue[bytes | None] = Queue(MAX_PIECES)
        self._armed = False
        self.dropped_bytes = 0
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """The record's line will be written within FLUSH_S, or dropped."""
        start = record.arrived_at
        _ENCODE(
            _Line(
                round(time.time(), 3),
                "request",
                record.request_id,
                record.client_id,
                record.model,
                record.endpoint,
                record.stream,
                record.mode,
                record.reason,
                record.prefill,
                record.decode,
                record.attempts,
                record.status,
                record.outcome,
                record.code,
                _ms(record.sent_at, start),
                _ms(record.prefilled_at, start),
                _ms(record.first_byte_at, start),
                _ms(record.ended_at, start),
                record.completion_tokens,
            ),
            self._buffer,
            -1,
        )
        self._buffer += b"\n"
        if not self._armed:
            self._armed = True
            self._later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """What has been collected is the thread's."""
        self._armed = False
        if self._buffer:
            try:
                self._queue.put_nowait(bytes(self._buffer))
            except Full:
                self.dropped_bytes += len(self._buffer)
            self._buffer.clear()

    def close(self, wait_s: float = 1.0) -> None:
        """Everything has been written, or the reader has not taken it within `wait_s` seconds."""
        self.flush()
        try:
            self._queue.put(None, timeout=wait_s)
        except Full:
            return
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            try:
                self._sink(piece)
            except OSError:
                self.dropped_bytes += len(piece)  # the reader is gone; requests matter more than their log


def _ms(at: float, start: float) -> float:
    return round((at - start) * 1000, 3) if at else 0.0
