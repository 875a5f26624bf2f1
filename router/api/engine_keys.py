"""EngineKeyFile: keys of single engines, read again when their file changes."""

from __future__ import annotations

from pathlib import Path

from router.legs.access import EngineAccess, read_engine_keys
from router.watched import WatchedFiles


class EngineKeyFile:
    """Keeps `access` as its file says."""

    def __init__(self, access: EngineAccess, path: str) -> None:
        """`access` has what the file says now.

        Raises:
            BadSettings: it cannot be read.
        """
        self._access = access
        self._path = path
        self._files = WatchedFiles([Path(path)])
        access.change(read_engine_keys(path))

    def refresh(self) -> None:
        """A file that has changed is in force; one that cannot be read leaves the keys as they are, and is logged."""
        self._files.reread(lambda: self._access.change(read_engine_keys(self._path)), "Keys of engines")
