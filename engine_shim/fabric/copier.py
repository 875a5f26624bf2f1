"""Copier: gathers granules of the cache into a slot of the ring, and scatters them out of one."""

from __future__ import annotations

import ctypes
import mmap
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine_shim.core.staging import INDEX_BYTES, Chunk
from router.contract.errors import MissingDependency
from router.contract.kv import Region

Bytes = npt.NDArray[np.uint8]


class Job(Protocol):
    """A gather or scatter under way."""

    def done(self) -> bool:
        """True when its bytes are where they belong."""

    def wait(self) -> None:
        """Return when done."""


class Copier(Protocol):
    """Moves granules between one cache and one ring. Jobs run in the order in which they were begun."""

    def gather(self, chunk: Chunk, granule_bytes: int, slot_offset: int) -> Job:
        """The slot at `slot_offset` gets the chunk's granules and, behind them, its target column."""

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
        self._cache = np.ctypeslib.as_array((ctypes.c_uint8 * cache.num_bytes).from_address(cache.base))
        self._ring = ring

    def gather(self, chunk: Chunk, granule_bytes: int, slot_offset: int) -> HostJob:
        """See Copier."""
        granules, index = self._slot(len(chunk.source), granule_bytes, slot_offset)
        # Any other mode than `raise` copies straight into `out`; the plan's offsets are known to be inside.
        np.take(self._rows(granule_bytes), chunk.source, axis=0, out=granules, mode="clip")
        index[:] = chunk.target
        return HostJob()

    def scatter(self, num_rows: int, granule_bytes: int, slot_offset: int) -> HostJob:
        """See Copier."""
        granules, index = self._slot(num_rows, granule_bytes, slot_offset)
        rows = self._rows(granule_bytes)
        inside = (index >= 0) & (index < len(rows))
        if inside.all():
            rows[index] = granules
        else:
            rows[index[inside]] = granules[inside]
        return HostJob()

    def _rows(self, granule_bytes: int) -> Bytes:
        whole = len(self._cache) // granule_bytes
        return self._cache[: whole * granule_bytes].reshape(whole, granule_bytes)

    def _slot(self, num_rows: int, granule_bytes: int, slot_offset: int) -> tuple[Bytes, npt.NDArray[np.int32]]:
        tail = slot_offset + num_rows * granule_bytes
        index = self._ring[tail : tail + num_rows * INDEX_BYTES].view(np.int32)
        return self._ring[slot_offset:tail].reshape(num_rows, granule_bytes), index


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
