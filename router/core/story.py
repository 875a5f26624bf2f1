"""Story: what happened to one request, in order, kept by the router while the request lives.

Lines are (seconds since arrival, what, note). The ring is bounded: a request that goes on and on keeps its beginning
and its newest lines, and says how many it has dropped.
"""

from __future__ import annotations

HEAD = 8
TAIL = 24

Line = tuple[float, str, str]
"""Seconds since arrival, stage, note. A note never holds what a client wrote."""


class Story:
    """The lines of one request."""

    __slots__ = ("_lines", "dropped")

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self.dropped = 0

    def tell(self, at_s: float, what: str, note: str = "") -> None:
        """The line is the newest of the Story."""
        lines = self._lines
        if len(lines) == HEAD + TAIL:
            del lines[HEAD]
            self.dropped += 1
        lines.append((at_s, what, note))

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines that were kept, oldest first."""
        return tuple(self._lines)
