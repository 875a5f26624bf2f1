"""Staging: a fragmented copy as index columns, for kernels that move *granules* instead of descriptors.

A granule is the largest power of two that divides every offset and size of a plan, at most GRANULE_MOST_BYTES. In
granules a plan is two index columns of equal length: where each granule lies at the source, and where it goes at the
target. A *chunk* is a stretch of both columns that fits a slot of the staging ring; in the slot its granules lie one
after the other, followed by their target column, so that one WRITE brings the bytes and says where they belong:

    slot    granule 0 | granule 1 | ... | granule n-1 | target index 0 (int32) | ... | target index n-1
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engine_shim.core.transfer_plan import TransferPlan
from router.contract.errors import TransferFailed

GRANULE_MOST_BYTES = 64 * 1024
GRANULE_LEAST_BYTES = 64
"""Finer plans are not staged: the index would weigh too much."""
INDEX_BYTES = 4

Index = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What passes through one slot: so many rows of both columns."""

    first: int
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class StagedPlan:
    """A TransferPlan in granules."""

    granule_bytes: int
    columns: Index
    """[2, rows], contiguous: granules of the source's Region, and the granule of the target's for each of them."""
    reach: tuple[int, int]
    """Bytes of the source's and of the target's Region that the plan needs."""

    @property
    def num_rows(self) -> int:
        """Granules that move."""
        return int(self.columns.shape[1])

    @property
    def num_bytes(self) -> int:
        """Bytes that move."""
        return self.num_rows * self.granule_bytes

    def chunks(self, slot_bytes: int, split: int = 1) -> list[Chunk]:
        """The whole plan in at least `split` chunks that fit slots of this size, in order and of almost equal size.

        Gather, WRITE and scatter of different chunks overlap, so equal ones leave nobody waiting.
        """
        most = granules_per_slot(slot_bytes, self.granule_bytes)
        count = min(max(split, -(-self.num_rows // most)), self.num_rows)
        borders = [self.num_rows * number // count for number in range(count + 1)]
        return [Chunk(first, end - first) for first, end in pairwise(borders)]

    def lies_within(self, source_bytes: int, target_bytes: int) -> bool:
        """True when nothing of the plan lies outside Regions of these sizes."""
        return self.reach[0] <= source_bytes and self.reach[1] <= target_bytes


def granules_per_slot(slot_bytes: int, granule_bytes: int) -> int:
    """Granules that fit a slot together with their index."""
    return slot_bytes // (granule_bytes + INDEX_BYTES)


def stage(plan: TransferPlan, slot_bytes: int) -> StagedPlan | None:
    """The plan in granules for slots of this size; None when they would be too fine, or the plan is empty.

    Few passes over few columns: this runs between the end of prefill and its first byte on the wire.

    Raises:
        TransferFailed: an offset or size is negative.
    """
    columns = plan.rows.T
    source, target, sizes = columns
    if not len(sizes):
        return None
    bits = int(np.bitwise_or.reduce(columns, axis=None))
    if bits < 0:
        raise TransferFailed("A span of the plan begins before its Region.")
    granule_bytes = granule_of(bits, slot_bytes)
    # What has a bit beyond int32 in any number has it in their union.
    if granule_bytes < GRANULE_LEAST_BYTES or bits >= granule_bytes << 31:
        return None
    shift = granule_bytes.bit_length() - 1
    if sizes.max() == granule_bytes:
        reach = int(source.max()) + granule_bytes, int(target.max()) + granule_bytes
        granules = np.empty((2, len(sizes)), dtype=np.int32)
        np.right_shift(columns[:2], shift, out=granules, casting="unsafe")
    else:
        reach = int((source + sizes).max()), int((target + sizes).max())
        granules = _cut((columns >> shift).astype(np.int32))
    return StagedPlan(granule_bytes, granules, reach)


def _cut(columns: Index) -> Index:
    """[2, granules] of [3, pieces]: source, target, granules of a piece."""
    sizes = columns[2]
    within = np.arange(sizes.sum(), dtype=np.int32) - np.repeat(np.cumsum(sizes, dtype=np.int32) - sizes, sizes)
    granules: Index = np.repeat(columns[:2], sizes, axis=1) + within
    return granules


def granule_of(bits: int, slot_bytes: int) -> int:
    """The largest power of two that divides all numbers whose bits these are, at most GRANULE_MOST_BYTES, and less than
    a slot."""
    return min(bits & -bits, GRANULE_MOST_BYTES, 1 << max(slot_bytes.bit_length() - 2, 0))
