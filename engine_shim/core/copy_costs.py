"""Which way a WRITE goes, by what its pair of engines has been seen to pay. Nothing here is guessed.

A path's price is linear: `fixed + pieces * piece + megabytes * megabyte`; a piece is a Span on the direct path and a
granule on the others. Its three numbers are the non-negative least-squares fit to the pair's own ended copies, older
ones counting less, each in proportion to what was expected of it or what it took, whichever is more: a millisecond
matters to a short copy, and a copy that took many times as long as expected tells of its moment. (The first one after a
pause does, for which a GPU's clocks rise; it must not make a path look dear that is then never taken again.) (Normal
equations with exponential forgetting; projected Gauss-Seidel from the last solution, so that what the copies do not
tell stays as it was.)

Every path is a correct one. So a pair's first copies try each path LEARN_FROM times, and later the paths that are
not taken are looked at again now and then. A new pair begins with what the agent's other pairs have taught.

One trial is not for every copy. Piece by piece has no bound between GPUs: 16k tokens of a 32B model took UCX ten
seconds where one kernel took 5 ms (deploy/benchmarks, H200). So where a kernel can do it, the direct path is tried
with short copies only; a pair that has none does without it. And what a path has never carried it is not believed to
carry: copies of one piece say nothing of what a piece costs.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum

LEARN_FROM = 3
"""Copies on a path before its price is believed; the very first one compiles kernels and opens connections."""
FORGET = 0.95
"""What a copy still weighs after the next one."""
STARTS = 1
"""Copies that tell of a start, not of the path: they are forgotten."""
WILD = 3.0
"""Times what was expected, from which a copy tells of its moment."""
MOMENTS = 4
"""So many of them in a row are no moment any more, and what was known before is forgotten."""
LEAST_S = 1e-6
SWEEPS = 4
"""The last solution is near the next one."""
LOOK_AGAIN_EVERY = 256
REACH = 16
"""A path is believed for copies of at most so many times the pieces that it has carried."""
TRIAL = 64, 16_000_000
"""Pieces and bytes of a short copy."""
HOPELESS = 4.0
"""A path that is expected to take so many times longer is not looked at again."""
_MEGABYTE = 1e6
_KILO = 1e3


class Path(StrEnum):
    """How a copy travels."""

    DIRECT = "direct"
    """Piece by piece, as the fabric does it."""
    STAGED = "staged"
    """Gathered into a ring, written at once, scattered."""
    MAPPED = "mapped"
    """By one kernel that addresses the peer's memory."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a copy's price depends on."""

    pieces: int
    num_bytes: int


@dataclass(slots=True)
class PathCost:
    """The price of one path, as far as it has been seen."""

    num_seen: int = 0
    price: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Seconds: fixed, per thousand pieces, per megabyte."""
    most_pieces: int = 0
    """Of a copy that has been seen."""
    _num_wild: int = 0
    """The last copies, as far as they were wild."""
    _normal: list[list[float]] = field(default_factory=lambda: [[0.0] * 3 for _ in range(3)])
    _right: list[float] = field(default_factory=lambda: [0.0] * 3)

    def knows(self, size: Size) -> bool:
        """True when what it expects of such a copy is worth something."""
        return self.num_seen >= LEARN_FROM and size.pieces <= REACH * self.most_pieces

    def expect_s(self, size: Size) -> float:
        """Seconds that a copy of this size will take."""
        return sum(cost * number for cost, number in zip(self.price, _numbers(size), strict=True))

    def learn(self, size: Size, took_s: float) -> None:
        """A copy of this size has taken so long."""
        self.num_seen += 1
        self.most_pieces = max(self.most_pieces, size.pieces)
        expected_s = self.expect_s(size)
        self._num_wild = self._num_wild + 1 if took_s > WILD * expected_s else 0
        is_new = self.num_seen <= STARTS + 1 or self._num_wild == MOMENTS
        weight_s = max(took_s, 0.0 if is_new else expected_s, LEAST_S)
        seen = took_s / weight_s
        row = [number / weight_s for number in _numbers(size)]
        forget = 0.0 if is_new else FORGET
        for i in range(3):
            self._right[i] = self._right[i] * forget + row[i] * seen
            self._normal[i] = [old * forget + row[i] * row[j] for j, old in enumerate(self._normal[i])]
        for _ in range(SWEEPS):
            for i in range(3):
                if self._normal[i][i] > 0.0:
                    rest = sum(self._normal[i][j] * self.price[j] for j in range(3) if j != i)
                    self.price[i] = max(0.0, (self._right[i] - rest) / self._normal[i][i])


class PairCosts:
    """What one pair pays on each path."""

    def __init__(self, taught: PairCosts | None = None) -> None:
        """Begin with nothing, or with what `taught` knows now."""
        fresh = {path: PathCost() for path in Path}
        self.paths: dict[Path, PathCost] = fresh if taught is None else deepcopy(taught.paths)
        self._num_chosen = 0

    def choose(self, sizes: dict[Path, Size]) -> Path:
        """The path to take of those that are possible: the least known one while one is not known, else the cheapest.

        Of equals the one that comes first in `sizes`.
        """
        self._num_chosen += 1
        known = [path for path in sizes if self.paths[path].knows(sizes[path])]
        untried = [path for path in sizes if path not in known and _may_be_tried(path, sizes)]
        if untried:
            return min(untried, key=lambda path: self.paths[path].num_seen)
        expected_s = {path: self.paths[path].expect_s(sizes[path]) for path in known}
        best = min(expected_s, key=expected_s.__getitem__)
        others = [path for path in known if path is not best and expected_s[path] < HOPELESS * expected_s[best]]
        return best if self._num_chosen % LOOK_AGAIN_EVERY else self._stalest(others, best)

    def learn(self, path: Path, size: Size, took_s: float) -> None:
        """A copy on this path took so long."""
        self.paths[path].learn(size, took_s)

    def _stalest(self, others: Collection[Path], best: Path) -> Path:
        return min(others, key=lambda path: self.paths[path].num_seen, default=best)


def _may_be_tried(path: Path, sizes: dict[Path, Size]) -> bool:
    most_pieces, most_bytes = TRIAL
    is_short = sizes[path].pieces <= most_pieces and sizes[path].num_bytes <= most_bytes
    return is_short or path is not Path.DIRECT or Path.MAPPED not in sizes


def _numbers(size: Size) -> tuple[float, float, float]:
    return 1.0, size.pieces / _KILO, size.num_bytes / _MEGABYTE
