"""What a person who waits gets to see: lines that stay, and one line that is rewritten while something goes on."""

from __future__ import annotations

import sys
from typing import TextIO

_WIDTH_CHARS = 100


class LiveLine:
    """One rewritten line at the bottom of a terminal; where there is no terminal, only lines that stay are written."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream` (default: stderr, so that stdout stays free for results)."""
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the live line by `text`, cut to one line's width."""
        if self._live:
            self._stream.write(f"\r\x1b[2K{text[:_WIDTH_CHARS]}")
            self._stream.flush()
            self._shown = True

    def say(self, text: str) -> None:
        """Write `text` as lines that stay; the live line is gone until it is shown again."""
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the live line away."""
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._shown = False


def bar(done: int, total: int, *, width_chars: int = 30) -> str:
    """Return `[####....] done/total`; a total of 0 counts as complete."""
    share = min(1.0, done / total) if total else 1.0
    filled = round(share * width_chars)
    return f"[{'#' * filled}{'.' * (width_chars - filled)}] {done}/{total}"
