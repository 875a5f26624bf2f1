"""Whole lines from several processes on one standard output."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class LineSink:
    """Writes pieces of whole lines; a piece of another worker never stands inside one of ours."""

    def __init__(self, file_number: int, lock_path: Path) -> None:
        """`lock_path` is a file that all workers open; each must do so itself, for a lock belongs to an opened file."""
        self._file_number = file_number
        self._lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __call__(self, piece: bytes) -> None:
        """The piece has been written as a whole; may block. Raises OSError when the reader is gone."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # the kernel releases it when its process dies
        try:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._file_number, rest) :]
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
