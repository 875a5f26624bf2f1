"""The note that a running `tandem up` leaves in its folder, so that other commands find its store and router."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

NOTE = Path(".tandem/up.json")


class Running(msgspec.Struct, frozen=True):
    """Where a set-up of this machine can be reached."""

    pid: int
    """Of `tandem up`."""
    url: str
    store: str
    deployment_key: str = ""
    """For commands that talk to its shims; the note is readable by its owner alone."""


@contextmanager
def noted(running: Running, path: Path = NOTE) -> Iterator[None]:
    """Inside, `find_running` returns `running`; afterwards the note is gone, unless another one has replaced it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(path, "xb", opener=_private) as note:
        note.write(msgspec.json.encode(running))
    try:
        yield
    finally:
        if _read(path) == running:
            path.unlink(missing_ok=True)


def find_running(path: Path = NOTE) -> Running | None:
    """Return the set-up that was started from this folder and still runs; None when there is none."""
    running = _read(path)
    return running if running and Path(f"/proc/{running.pid}").exists() else None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read(path: Path) -> Running | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Running)
    except (OSError, msgspec.DecodeError):
        return None
