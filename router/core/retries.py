"""RetryBudget: how many requests may go into another attempt.

A token bucket: each request adds `share`, each second `floor_per_s`, and a retry takes one. What is not used fades with
a time constant of HORIZON_S, so that quiet hours do not save up for a storm, while the loss of a whole engine under
load still finds enough.
"""

from __future__ import annotations

from math import exp

HORIZON_S = 30.0


class RetryBudget:
    """Tokens for retries of one router. Nothing is counted per request: its caller knows how many there were."""

    __slots__ = ("_at", "_floor_per_s", "_share", "_tokens")

    def __init__(self, share: float, floor_per_s: float, now: float) -> None:
        """`share` 0.2 lets one retry follow five requests; the bucket starts with what the floor fills in."""
        self._share = share
        self._floor_per_s = floor_per_s
        self._tokens = floor_per_s * HORIZON_S
        self._at = now

    @property
    def tokens(self) -> float:
        """Retries that could follow at once."""
        return self._tokens

    def accrue(self, num_requests: int, now: float) -> None:
        """`num_requests` have come since the last call; call it a few times a second."""
        elapsed_s = max(now - self._at, 0.0)
        self._at = now
        kept = exp(-elapsed_s / HORIZON_S)
        floor = self._floor_per_s * HORIZON_S * (1.0 - kept)
        self._tokens = self._tokens * kept + floor + self._share * num_requests

    def take(self) -> bool:
        """True: one retry may go, and is paid for."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def give_back(self) -> None:
        """A retry that was paid for has not gone."""
        self._tokens += 1.0
