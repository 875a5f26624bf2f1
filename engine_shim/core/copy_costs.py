"""Which way a WRITE goes: straight from its blocks, or staged through a ring.

A path's price is linear, `fixed + pieces * piece + bytes * byte`; a piece is a Span on the direct path and a granule on
the staged one. The prices are measured once per kind of memory (`tandem bench transfer`); what a pair of engines really
pays is learned as one factor for each path, from its ended copies. The factor of the path that is not taken drifts
back to 1, so that one bad moment does not rule it out for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

LEARNING = 0.2
FORGETTING = 0.02
FACTOR_MOST = 8.0
"""A copy that took longer than so many times its price says more about its moment than about its path."""


class Path(StrEnum):
    """How a copy travels."""

    DIRECT = "direct"
    STAGED = "staged"


@dataclass(frozen=True, slots=True)
class Price:
    """What a copy costs, seconds."""

    fixed_s: float
    piece_s: float
    byte_s: float

    def of(self, pieces: int, num_bytes: int) -> float:
        """Seconds for so many pieces and bytes."""
        return self.fixed_s + pieces * self.piece_s + num_bytes * self.byte_s


PRICES: dict[str, dict[Path, Price]] = {
    # Two processes on one H200, and a wire of 256 GB/s between two (deploy/benchmarks).
    "cuda": {Path.DIRECT: Price(60e-6, 6e-6, 1 / 256e9), Path.STAGED: Price(400e-6, 40e-9, 1 / 200e9)},
    # 16 cores, UCX over shared memory: gather and scatter cost a pass each, and a Span less than on a GPU.
    "cpu": {Path.DIRECT: Price(100e-6, 1.9e-6, 1 / 6.8e9), Path.STAGED: Price(300e-6, 0.4e-6, 1 / 2.1e9)},
}
"""By the kind of memory."""


@dataclass(slots=True)
class PairCosts:
    """What one pair pays."""

    prices: dict[Path, Price]
    factors: dict[Path, float] = field(default_factory=lambda: dict.fromkeys(Path, 1.0))

    def expect_s(self, path: Path, pieces: int, num_bytes: int) -> float:
        """Seconds that a copy will take."""
        return self.prices[path].of(pieces, num_bytes) * self.factors[path]

    def choose(self, spans: int, granules: int, num_bytes: int) -> Path:
        """The cheaper path; the direct one when they are equal."""
        direct_s = self.expect_s(Path.DIRECT, spans, num_bytes)
        return Path.STAGED if self.expect_s(Path.STAGED, granules, num_bytes) < direct_s else Path.DIRECT

    def learn(self, path: Path, pieces: int, num_bytes: int, took_s: float) -> None:
        """A copy on this path took so long."""
        seen = min(max(took_s / self.prices[path].of(pieces, num_bytes), 1 / FACTOR_MOST), FACTOR_MOST)
        self.factors[path] += LEARNING * (seen - self.factors[path])
        for other in Path:
            if other is not path:
                self.factors[other] += FORGETTING * (1.0 - self.factors[other])
