"""Files that are read again when they change: keys and certificates are replaced while the router runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from router.contract.errors import BadSettings

LOG = logging.getLogger("tandem.router")

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

    def reread(self, read: Callable[[], None], what: str) -> None:
        """`read` has been called if one has changed. Where it could not use them, all stays as it was; both are logged.

        `what` names, in the plural, what is read.
        """
        if not self.changed():
            return
        try:
            read()
        except BadSettings as error:
            LOG.warning("%s stay as they were. %s", what, error.message)
            return
        LOG.info("%s read again from %s", what, ", ".join(map(str, self._paths)))

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
