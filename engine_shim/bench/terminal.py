"""What a benchmark tells while it runs."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
