"""The request log: one JSON line per finished request, written by a thread of its own.

A slow reader of standard output must not stop the event loop, so lines are collected for a moment and handed over in
one piece; what the thread cannot get rid of is dropped and counted, never waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec

from router.core.record import Record

FLUSH_S = 0.1
MAX_PIECES = 32
"""Pieces of FLUSH_S each that may wait for a slow reader: about three seconds."""

_ENCODE = msgspec.json.Encoder().encode_into


class RequestLog:
    """Lines of one router. `tell` belongs to the event loop."""

    def __init__(self, sink: Callable[[bytes], object], later: Callable[[float, Callable[[], None]], object]) -> None:
        """`sink` takes bytes and may block; `later(seconds, call)` is the event loop's call_later."""
        self._sink = sink
        self._later = later
        self._buffer = bytearray()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._armed = False
        self.dropped_bytes = 0
        """Of lines that nobody has taken."""
        self._writer = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._writer.start()

    def tell(self, record: Record) -> None:
        """The record's line will be written within FLUSH_S, or dropped."""
        _ENCODE(record, self._buffer, -1)
        self._buffer += b"\n"
        if not self._armed:
            self._armed = True
            self._later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """What has been collected is the thread's."""
        self._armed = False
        if self._buffer:
            if self._queue.qsize() < MAX_PIECES:
                self._queue.put(bytes(self._buffer))
            else:
                self.dropped_bytes += len(self._buffer)
            self._buffer.clear()

    def close(self, wait_s: float = 1.0) -> None:
        """Everything has been written, or the reader has not taken it within `wait_s` seconds."""
        self.flush()
        self._queue.put(None)
        self._writer.join(wait_s)

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            try:
                self._sink(piece)
            except OSError:
                self.dropped_bytes += len(piece)  # the reader is gone; requests matter more than their log
