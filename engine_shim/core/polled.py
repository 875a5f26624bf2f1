"""PolledClock: time that has passed while somebody polled the network.

What lies in buffers lands only when it is polled for. A process that was stopped, or whose event loop stood still, has
not polled, so that time must not count when one waits for buffers to be empty.
"""

from __future__ import annotations

MAX_STEP_S = 0.5
"""A longer gap between two ticks counts as so much."""


class PolledClock:
    """Advanced by ticks; `since` measures from the first tick at which it was asked."""

    def __init__(self) -> None:
        self._polled_s = 0.0
        self._ticked_at: float | None = None

    def tick(self, now: float) -> None:
        """The network has been polled since the last tick."""
        if self._ticked_at is not None:
            self._polled_s += min(max(now - self._ticked_at, 0.0), MAX_STEP_S)
        self._ticked_at = now

    def since(self, mark: float | None) -> tuple[float, float]:
        """The mark, set now if there was none, and the polled seconds since it."""
        if mark is None:
            mark = self._polled_s
        return mark, self._polled_s - mark
