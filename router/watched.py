"""Files that are read again when they change: keys and certificates are replaced while the router runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

LOOK_S = 1.0


class Refreshable(Protocol):
    """Something that was read from files."""

    def refresh(self) -> None:
        """What the files say now is in force, if they have changed; never raises."""


class WatchedFiles:
    """Tells when one of some files has been written or replaced."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()

    def changed(self) -> bool:
        """True once for each change."""
        now = self._look()
        before, self._seen = self._seen, now
        return now != before

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_mark(path) for path in self._paths]


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        seen = path.stat()  # follows links: Kubernetes replaces a secret by turning one
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_ino, seen.st_size


async def keep_fresh(what: Sequence[Refreshable]) -> None:
    """Everything is refreshed every LOOK_S seconds until cancelled."""
    while what:
        await asyncio.sleep(LOOK_S)
        for one in what:
            one.refresh()
