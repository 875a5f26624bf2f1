"""Copier: moves granules between the cache, slots of the ring, and a peer's cache where it can be addressed."""

from __future__ import annotations

import ctypes
import mmap
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine_shim.core.staging import INDEX_BYTES, Chunk, StagedPlan
from router.contract.errors import MissingDependency
from router.contract.kv import Region

Bytes = npt.NDArray[np.uint8]


class Job(Protocol):
    """A gather, scatter or move under way."""

    def done(self) -> bool:
        """True when its bytes are where they belong."""

    def wait(self) -> None:
        """Return when done."""


class Columns(Protocol):
    """The index columns of a plan at hand; all its offsets are known to be inside."""

    def gather(self, chunk: Chunk, slot_offset: int) -> Job:
        """The slot at `slot_offset` gets the chunk's granules and, behind them, its target column."""

    def move(self, source_base: int, target_base: int) -> Job:
        """All granules go from memory that begins at `source_base` to memory that begins at `target_base`."""

    def let_go(self) -> None:
        """No job will read the columns any more, and none does."""


class Copier(Protocol):
    """Jobs run in the order in which they were begun."""

    def take_up(self, plan: StagedPlan) -> Columns:
        """The plan's columns are at hand."""

    def scatter(self, num_rows: int, granule_bytes: int, slot_offset: int) -> Job:
        """`num_rows` granules of a slot go where the column behind them says; those outside the cache nowhere."""


class HostJob:
    """Host copies are done when they begin."""

    def done(self) -> bool:
        """See Job."""
        return True

    def wait(self) -> None:
        """See Job."""


class HostCopier:
    """Host memory, by numpy; the specification of the GPU's kernels."""

    def __init__(self, cache: Region, ring: Bytes) -> None:
        self._cache = _bytes_at(cache.base, cache.num_bytes)
        self._ring = ring

    def take_up(self, plan: StagedPlan) -> HostColumns:
        """See Copier."""
        return HostColumns(plan, self._cache, self._ring)

    def scatter(self, num_rows: int, granule_bytes: int, slot_offset: int) -> HostJob:
        """See Copier."""
        granules, index = _slot(self._ring, num_rows, granule_bytes, slot_offset)
        rows = _rows(self._cache, granule_bytes)
        inside = (index >= 0) & (index < len(rows))
        if inside.all():
            rows[index] = granules
        else:
            rows[index[inside]] = granules[inside]
        return HostJob()


class HostColumns:
    """Columns in host memory are read where they are."""

    def __init__(self, plan: StagedPlan, cache: Bytes, ring: Bytes) -> None:
        self._plan = plan
        self._granules = _rows(cache, plan.granule_bytes)
        self._ring = ring

    def gather(self, chunk: Chunk, slot_offset: int) -> HostJob:
        """See Columns."""
        rows = slice(chunk.first, chunk.first + chunk.num_rows)
        granules, index = _slot(self._ring, chunk.num_rows, self._plan.granule_bytes, slot_offset)
        # Any other mode than `raise` copies straight into `out`.
        np.take(self._granules, self._plan.columns[0, rows], axis=0, out=granules, mode="clip")
        index[:] = self._plan.columns[1, rows]
        return HostJob()

    def move(self, source_base: int, target_base: int) -> HostJob:
        """See Columns."""
        source, target = self._plan.columns
        before, after = (
            _rows(_bytes_at(base, reach), self._plan.granule_bytes)
            for base, reach in zip((source_base, target_base), self._plan.reach, strict=True)
        )
        after[target] = before[source]
        return HostJob()

    def let_go(self) -> None:
        """See Columns."""


def _slot(ring: Bytes, num_rows: int, granule_bytes: int, slot_offset: int) -> tuple[Bytes, npt.NDArray[np.int32]]:
    tail = slot_offset + num_rows * granule_bytes
    index = ring[tail : tail + num_rows * INDEX_BYTES].view(np.int32)
    return ring[slot_offset:tail].reshape(num_rows, granule_bytes), index


def _bytes_at(base: int, num_bytes: int) -> Bytes:
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(base))


def _rows(memory: Bytes, granule_bytes: int) -> Bytes:
    whole = len(memory) // granule_bytes
    return memory[: whole * granule_bytes].reshape(whole, granule_bytes)


def open_ring(cache: Region, num_bytes: int) -> tuple[Region, Copier]:
    """Memory for a ring beside the cache, of the same kind, and a Copier between both.

    Raises:
        MissingDependency: the cache is in GPU memory and there is no Triton.
    """
    if cache.device == "cpu":
        ring = np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
        return Region(ring.ctypes.data, num_bytes, "cpu"), HostCopier(cache, ring)
    try:
        # Only where there is a GPU.
        import torch  # noqa: PLC0415

        from engine_shim.fabric.gather_cuda import CudaCopier  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "Staging in GPU memory needs Triton: run `pip install triton`, or set --staging-bytes 0."
        ) from error
    memory = torch.zeros(num_bytes, dtype=torch.uint8, device=f"cuda:{cache.device_id}")
    torch.cuda.synchronize(cache.device_id)
    return Region(memory.data_ptr(), num_bytes, "cuda", cache.device_id), CudaCopier(cache, memory)
