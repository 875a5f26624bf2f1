"""Tail: what the end of a streamed answer says, kept while the bytes go by.

Events are not parsed one by one; the last few KiB tell how the stream ended and, if the client asked for it, the usage.
"""

from __future__ import annotations

import re

KEPT_BYTES = 4096

_DONE = b"[DONE]"
_FINISHED = re.compile(rb'"finish_reason": ?"\w+"')
_ERROR = re.compile(rb'data: ?\{"error":|"finish_reason": ?"error"')
_USAGE = b'"completion_tokens":'
_DIGITS = re.compile(rb" ?(\d{1,12})")


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
    return tail.rfind(_DONE) >= 0 or _FINISHED.search(tail) is not None or tells_error(tail)


def tells_error(tail: bytes) -> bool:
    """True when the engine itself reports a failure at the end of a well-formed answer."""
    return b'"error"' in tail and _ERROR.search(tail) is not None


def completion_tokens(tail: bytes) -> int:
    """The newest count of generated tokens in a usage object, or 0 when there is none."""
    at = tail.rfind(_USAGE)
    if at < 0:
        return 0
    digits = _DIGITS.match(tail, at + len(_USAGE))
    return int(digits[1]) if digits is not None else 0
