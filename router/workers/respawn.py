"""Respawn: when a worker that has died starts again, or why no worker will. Time is passed in."""

from __future__ import annotations

YOUNG_S = 10.0
"""A worker that dies at this age or later has done its work; it is replaced at once."""
FIRST_BACK_OFF_S = 0.2
MAX_BACK_OFF_S = 5.0
YOUNG_DEATHS = 6
"""So many young deaths of one slot in a row are a crash loop."""


class Respawn:
    """Counts the young deaths of each slot."""

    __slots__ = ("_young",)

    def __init__(self) -> None:
        self._young: dict[int, int] = {}

    def delay_s(self, slot: int, lived_s: float) -> float | None:
        """Seconds until the slot's next worker starts, now that one has died; None for a crash loop: give up."""
        if lived_s >= YOUNG_S:
            self._young.pop(slot, None)
            return 0.0
        deaths = self._young[slot] = self._young.get(slot, 0) + 1
        if deaths >= YOUNG_DEATHS:
            return None
        return 0.0 if deaths == 1 else min(FIRST_BACK_OFF_S * 2.0 ** (deaths - 2), MAX_BACK_OFF_S)
