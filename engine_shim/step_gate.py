"""StepGate: what must not happen during an engine's step, as where both share a loop.

Connectors inside an engine post their copies on the engine's own loop: a step waits for the posting, and the posting
for a step. Tandem's shim never does; this gate makes it, so that a benchmark can tell what it is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock


class StepGate:
    """Of one engine thread and one other thread; who waits has the next turn."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._nobody_waits = Event()
        self._nobody_waits.set()

    @contextmanager
    def step(self) -> Iterator[None]:
        """The engine's step: it begins when nobody waits for its end."""
        self._nobody_waits.wait()
        with self._lock:
            yield

    @contextmanager
    def between(self) -> Iterator[None]:
        """No step runs, and none begins."""
        self._nobody_waits.clear()
        try:
            with self._lock:
                yield
        finally:
            self._nobody_waits.set()
