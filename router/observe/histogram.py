"""Histograms as plain lists, because one observation then costs a fraction of a microsecond, and their buckets."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from router.core.cadence import GAP_S

TTFT_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0),
    *(4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
TPOT_S = GAP_S
E2E_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 240.0, 600.0)
OVERHEAD_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
# Phases last from the placing of a request, some 0.1 ms, to the prefill of a very long prompt.
PHASE_S = (0.00025, 0.0005, 0.001, 0.0025, *TTFT_S)


class Histogram:
    """Counts per bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One more observation; a bucket includes its upper bound."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts as Prometheus wants them, `+Inf` last."""
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(names, (float(count) for count in accumulate(self.counts)), strict=True))
