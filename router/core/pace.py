"""Pace: how fast an instance is, learned from its answers.

Two straight lines per instance, each fitted by least squares in which an observation's weight halves with every 23 that
follow it: seconds to prefill's answer over the prompt tokens that were waiting (its own included), and seconds per
output token over the sequences that were running. Both begin as a guess that is the same for everybody and fades.
"""

from __future__ import annotations

_KEEP = 0.97
_GUESS_WEIGHT = 2.0

PREFILL_GUESS = (0.02, 1 / 8000, 16_000.0)
"""Seconds for nothing, seconds per token, and tokens up to which the guess is spread."""
STEP_GUESS = (0.01, 0.0002, 64.0)
"""The same in seconds per output token, over sequences."""


class Trend:
    """`at(x)` is base + slope * x; neither is ever negative."""

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y", "base", "slope")

    def __init__(self, base: float, slope: float, spread: float) -> None:
        """As if it had been observed at 0 and at `spread`."""
        self.base, self.slope = base, slope
        weight = _GUESS_WEIGHT / 2
        self._n, self._x, self._xx = 2 * weight, weight * spread, weight * spread * spread
        self._y = weight * (2 * base + slope * spread)
        self._xy = weight * spread * (base + slope * spread)

    def at(self, x: float) -> float:
        """What is expected at `x`."""
        return self.base + self.slope * x

    def add(self, x: float, y: float) -> None:
        """`y` was observed at `x`."""
        self._n = n = self._n * _KEEP + 1
        self._x = sum_x = self._x * _KEEP + x
        self._y = sum_y = self._y * _KEEP + y
        self._xx = sum_xx = self._xx * _KEEP + x * x
        self._xy = sum_xy = self._xy * _KEEP + x * y
        spread = n * sum_xx - sum_x * sum_x
        # Observations at one x say nothing about the slope: the last one known stands, and the base follows.
        if spread > 1e-6 * n * sum_xx:
            self.slope = max(0.0, (n * sum_xy - sum_x * sum_y) / spread)
        self.base = (sum_y - self.slope * sum_x) / n
        if self.base < 0.0:
            self.base, self.slope = 0.0, sum_xy / sum_xx  # the best line through the origin


class Pace:
    """The two lines of one instance."""

    __slots__ = ("prefill", "step")

    def __init__(self) -> None:
        self.prefill = Trend(*PREFILL_GUESS)
        self.step = Trend(*STEP_GUESS)
