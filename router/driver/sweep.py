"""Sweep: one coarse timer for the deadlines of all live requests.

A timer per request and phase costs more than the request's own bookkeeping; a deadline that is noticed up to PERIOD_S
late costs nobody anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from time import monotonic
from typing import Protocol

PERIOD_S = 0.1


class Due(Protocol):
    """Something with a next deadline."""

    due_at: float

    def on_due(self, now: float) -> None:
        """`due_at` has passed: act on it, or set it anew."""


class Sweep:
    """Calls on_due of whatever is due, every PERIOD_S seconds, from `start` until `stop`."""

    def __init__(self, sets: Sequence[Collection[Due]]) -> None:
        """`sets` hold what is to be swept; others add to them and remove from them."""
        self._sets = sets
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Sweeping, on the running event loop."""
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._run)

    def stop(self) -> None:
        """No more sweeping."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self.start()
        now = monotonic()
        for live in self._sets:
            for due in [due for due in live if due.due_at <= now]:
                due.on_due(now)
