"""Tail: what the end of a streamed answer says, kept while the bytes go by.

Events are not parsed one by one; the last few KiB tell how the stream ended and, if the client asked for it, the usage.
"""

from __future__ import annotations

import re

KEPT_BYTES = 4096

_DONE = re.compile(rb"data: ?\[DONE\]")
_FINISHED = re.compile(rb'"(?:finish_reason|stop_reason)": ?"(\w+)"')
_ERROR = re.compile(rb'data: ?\{"error":|"finish_reason": ?"error"')
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')


class Tail:
    """The last bytes of a body; `feed` costs an append, whatever has gone by."""

    __slots__ = ("_pieces", "_size", "num_events")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self.num_events = 0
        """Server-sent events so far; those that are cut between two reads may count for none."""

    def feed(self, body: bytes) -> None:
        """`body` has gone by."""
        self._pieces.append(body)
        self._size += len(body)
        self.num_events += body.count(b"data:")
        if self._size > 2 * KEPT_BYTES:
            kept = b"".join(self._pieces)[-KEPT_BYTES:]
            self._pieces = [kept]
            self._size = len(kept)

    def read(self) -> bytes:
        """The last bytes, at most 2 * KEPT_BYTES."""
        return b"".join(self._pieces)


def ended_well(tail: bytes) -> bool:
    """True when a stream that ends so has ended on purpose: it is done, finished, or carries the engine's own error."""
    return bool(_DONE.search(tail) or _FINISHED.search(tail) or _ERROR.search(tail))


def tells_error(tail: bytes) -> bool:
    """True when the engine itself reports a failure at the end of a well-formed answer."""
    return _ERROR.search(tail) is not None


def completion_tokens(tail: bytes) -> int:
    """The newest count of generated tokens in a usage object, or 0 when there is none."""
    found = _USAGE.findall(tail)
    return int(found[-1]) if found else 0
