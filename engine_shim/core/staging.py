"""Staging: a fragmented copy as one gather, contiguous WRITEs and one scatter, all in *granules*.

A granule is the largest power of two that divides every offset and size of a plan, at most GRANULE_MOST_BYTES. In
granules a plan is two index columns of equal length: where each granule lies at the source, and where it goes at the
target. A *chunk* is a stretch of both columns that fits a slot of the staging ring; in the slot its granules lie one
after the other, followed by their target column, so that one WRITE brings the bytes and says where they belong:

    slot    granule 0 | granule 1 | ... | granule n-1 | target index 0 (int32) | ... | target index n-1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_shim.core.transfer_plan import Rows, TransferPlan

GRANULE_MOST_BYTES = 64 * 1024
GRANULE_LEAST_BYTES = 64
"""Finer plans are not staged: the index would weigh too much."""
INDEX_BYTES = 4

Index = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What passes through one slot."""

    source: Index
    """Granules of the source's Region."""
    target: Index
    """Granules of the target's Region, one for each of `source`."""


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A TransferPlan in granules."""

    granule_bytes: int
    source: Index
    target: Index

    def chunks(self, slot_bytes: int) -> Iterator[Chunk]:
        """The whole plan in as few chunks as fit slots of this size, in order."""
        most = granules_per_slot(slot_bytes, self.granule_bytes)
        for first in range(0, len(self.source), most):
            yield Chunk(self.source[first : first + most], self.target[first : first + most])


def granules_per_slot(slot_bytes: int, granule_bytes: int) -> int:
    """Granules that fit a slot together with their index."""
    return slot_bytes // (granule_bytes + INDEX_BYTES)


def stage(plan: TransferPlan, slot_bytes: int) -> StagedPlan | None:
    """The plan in granules for slots of this size; None when they would be too fine, or the plan is empty."""
    rows = plan.rows
    if not len(rows):
        return None
    granule_bytes = granule_of(rows, slot_bytes)
    if granule_bytes < GRANULE_LEAST_BYTES:
        return None
    source, target, sizes = (rows // granule_bytes).astype(np.int32).T
    if (sizes == 1).all():
        return StagedPlan(granule_bytes, source, target)
    within = np.arange(sizes.sum(), dtype=np.int32) - np.repeat(np.cumsum(sizes, dtype=np.int32) - sizes, sizes)
    return StagedPlan(granule_bytes, np.repeat(source, sizes) + within, np.repeat(target, sizes) + within)


def granule_of(rows: Rows, slot_bytes: int) -> int:
    """The largest power of two that divides all numbers, at most GRANULE_MOST_BYTES, and less than a slot."""
    bits = int(np.bitwise_or.reduce(rows, axis=None))
    return min(bits & -bits, GRANULE_MOST_BYTES, 1 << max(slot_bytes.bit_length() - 2, 0))
