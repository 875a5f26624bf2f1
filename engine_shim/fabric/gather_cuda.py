"""Gather and scatter of granules in GPU memory: one kernel each, written in Triton, which comes with torch on Linux.

A program moves COLS of the WIDTH 8-byte words of each of ROWS granules; all are powers of two, and every access is 16
bytes wide. Gather also leaves the target column behind the granules; scatter reads it from there, on the GPU, and
skips what lies outside the Region.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl

from engine_shim.core.staging import INDEX_BYTES, Chunk
from router.contract.kv import Region

WORD_BYTES = 8
TILE_WORDS = 2048
_TILE_WORDS = tl.constexpr(TILE_WORDS)
NUM_WARPS = 8
COLUMN_LEAST_ROWS = 4096


# Triton compiles these functions itself and takes no annotations but its own.
@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _gather(slot, region, index, num_rows, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    COLS: tl.constexpr = WIDTH if WIDTH < _TILE_WORDS else _TILE_WORDS  # noqa: N806
    ROWS: tl.constexpr = _TILE_WORDS // COLS  # noqa: N806
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    there = rows < num_rows
    source = tl.load(index + rows, mask=there, other=0).to(tl.int64)
    words = tl.load(region + source[:, None] * WIDTH + cols[None, :], mask=there[:, None])
    tl.store(slot + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :], words, mask=there[:, None])


@triton.jit(do_not_specialize=["num_rows", "limit"])  # type: ignore[untyped-decorator]
def _scatter(slot, region, index, num_rows, limit, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    COLS: tl.constexpr = WIDTH if WIDTH < _TILE_WORDS else _TILE_WORDS  # noqa: N806
    ROWS: tl.constexpr = _TILE_WORDS // COLS  # noqa: N806
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    there = rows < num_rows
    target = tl.load(index + rows, mask=there, other=0).to(tl.int64)
    there = there & (target >= 0) & (target < limit)
    words = tl.load(slot + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :], mask=there[:, None])
    tl.store(region + target[:, None] * WIDTH + cols[None, :], words, mask=there[:, None])


class _Event(Protocol):
    """A point of a stream."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CudaJob:
    """A kernel on its way."""

    event: _Event

    def done(self) -> bool:
        """True when its bytes are where they belong."""
        return self.event.query()

    def wait(self) -> None:
        """Return when done."""
        self.event.synchronize()


class CudaCopier:
    """See Copier; everything runs on one stream of its own, in order."""

    def __init__(self, cache: Region, ring: torch.Tensor) -> None:
        self._device = torch.device("cuda", cache.device_id)
        self._cache_bytes = cache.num_bytes
        self._cache = _Pointer(cache.base)
        self._ring = ring
        # Any: torch leaves its constructor untyped.
        stream: Any = torch.cuda.Stream
        self._stream = stream(self._device)
        self._columns: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def gather(self, chunk: Chunk, granule_bytes: int, slot_offset: int) -> CudaJob:
        """See Copier."""
        num_rows = len(chunk.source)
        host, source = self._columns_of(slot_offset, num_rows)
        columns = host.numpy()
        columns[:num_rows] = chunk.source
        columns[num_rows : 2 * num_rows] = chunk.target
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            words, index = self._slot(slot_offset, num_rows, granule_bytes)
            source[:num_rows].copy_(host[:num_rows], non_blocking=True)
            index.copy_(host[num_rows : 2 * num_rows], non_blocking=True)
            width = granule_bytes // WORD_BYTES
            _gather[_grid(num_rows, width)](words, self._cache, source, num_rows, width, num_warps=NUM_WARPS)
            return CudaJob(self._stream.record_event())

    def scatter(self, num_rows: int, granule_bytes: int, slot_offset: int) -> CudaJob:
        """See Copier."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            words, index = self._slot(slot_offset, num_rows, granule_bytes)
            width, limit = granule_bytes // WORD_BYTES, self._cache_bytes // granule_bytes
            _scatter[_grid(num_rows, width)](words, self._cache, index, num_rows, limit, width, num_warps=NUM_WARPS)
            return CudaJob(self._stream.record_event())

    def _slot(self, slot_offset: int, num_rows: int, granule_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        tail = slot_offset + num_rows * granule_bytes
        index = self._ring[tail : tail + num_rows * INDEX_BYTES].view(torch.int32)
        return self._ring[slot_offset:tail].view(torch.int64), index

    def _columns_of(self, slot_offset: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Both columns in pinned memory, and room for the source column on the GPU; they are the slot's own, so they
        rest while the slot is in use."""
        kept = self._columns.get(slot_offset)
        if kept is None or len(kept[1]) < num_rows:
            room = max(num_rows, COLUMN_LEAST_ROWS)
            host = torch.empty(2 * room, dtype=torch.int32, pin_memory=True)
            kept = host, torch.empty(room, dtype=torch.int32, device=self._device)
            self._columns[slot_offset] = kept
        return kept


def _grid(num_rows: int, width: int) -> tuple[int, int]:
    """Programs over the rows, and over the words of one."""
    cols = min(width, TILE_WORDS)
    return -(-num_rows * cols // TILE_WORDS), width // cols


class _Pointer:
    """Memory at an address, as Triton takes it."""

    dtype = torch.int64

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        """The address."""
        return self._address
