"""Gather, scatter and move of granules in GPU memory: one kernel each, written in Triton, which comes with torch.

A program moves COLS of the WIDTH 8-byte words of each of ROWS granules; all are powers of two, and every access is 16
bytes wide: slots begin at pages, so their words are found by a page number that the compiler sees multiplied. Gather
also leaves the target column behind the granules; scatter reads it from there, on the GPU, and skips what lies outside
the Region. Move writes over NVLink, which few programs fill: the others would only keep the GPU from its work.

The columns of a plan are uploaded once, source column first, whatever the number of its chunks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl

from engine_shim.core.staging import Chunk, Index, StagedPlan
from engine_shim.fabric.ring import ALIGN_BYTES
from router.contract.kv import Region

WORD_BYTES = 8
TILE_WORDS = 2048
NUM_WARPS = 8
MOVE_PROGRAMS = 128
COLUMN_LEAST_ROWS = 4096
_TILE_WORDS = tl.constexpr(TILE_WORDS)
_PAGE_WORDS = tl.constexpr(ALIGN_BYTES // WORD_BYTES)
_INDEX_PER_WORD = tl.constexpr(2)


# Triton compiles these functions itself and takes no annotations but its own.
@triton.jit(do_not_specialize=["page", "first", "num_rows", "total"])  # type: ignore[untyped-decorator]
def _gather(ring, region, index, page, first, num_rows, total, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803, PLR0913, PLR0917
    COLS: tl.constexpr = WIDTH if WIDTH < _TILE_WORDS else _TILE_WORDS  # noqa: N806
    ROWS: tl.constexpr = _TILE_WORDS // COLS  # noqa: N806
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    there = rows < num_rows
    begin = page.to(tl.int64) * _PAGE_WORDS
    source = tl.load(index + first + rows, mask=there, other=0).to(tl.int64)
    words = tl.load(region + source[:, None] * WIDTH + cols[None, :], mask=there[:, None])
    tl.store(ring + begin + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :], words, mask=there[:, None])
    tail = (begin + num_rows.to(tl.int64) * WIDTH) * _INDEX_PER_WORD
    at_begin = there & (tl.program_id(1) == 0)
    target = tl.load(index + total + first + rows, mask=at_begin)
    tl.store(ring.to(tl.pointer_type(tl.int32)) + tail + rows, target, mask=at_begin)


@triton.jit(do_not_specialize=["page", "num_rows", "limit"])  # type: ignore[untyped-decorator]
def _scatter(ring, region, page, num_rows, limit, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    COLS: tl.constexpr = WIDTH if WIDTH < _TILE_WORDS else _TILE_WORDS  # noqa: N806
    ROWS: tl.constexpr = _TILE_WORDS // COLS  # noqa: N806
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    there = rows < num_rows
    begin = page.to(tl.int64) * _PAGE_WORDS
    tail = (begin + num_rows.to(tl.int64) * WIDTH) * _INDEX_PER_WORD
    target = tl.load(ring.to(tl.pointer_type(tl.int32)) + tail + rows, mask=there, other=0).to(tl.int64)
    there = there & (target >= 0) & (target < limit)
    words = tl.load(ring + begin + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :], mask=there[:, None])
    tl.store(region + target[:, None] * WIDTH + cols[None, :], words, mask=there[:, None])


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])  # type: ignore[untyped-decorator]
def _move(theirs, region, index, num_rows, num_tiles, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    COLS: tl.constexpr = WIDTH if WIDTH < _TILE_WORDS else _TILE_WORDS  # noqa: N806
    ROWS: tl.constexpr = _TILE_WORDS // COLS  # noqa: N806
    COL_TILES: tl.constexpr = WIDTH // COLS  # noqa: N806
    for turn in range(0, tl.cdiv(num_tiles, tl.num_programs(0))):
        # A tile after the last has no row that is there.
        tile = turn * tl.num_programs(0) + tl.program_id(0)
        rows = tile // COL_TILES * ROWS + tl.arange(0, ROWS)
        cols = tile % COL_TILES * COLS + tl.arange(0, COLS)
        there = rows < num_rows
        source = tl.load(index + rows, mask=there, other=0).to(tl.int64)
        target = tl.load(index + num_rows + rows, mask=there, other=0).to(tl.int64)
        words = tl.load(region + source[:, None] * WIDTH + cols[None, :], mask=there[:, None])
        tl.store(theirs + target[:, None] * WIDTH + cols[None, :], words, mask=there[:, None])


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


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for columns, kept for the next plan."""

    host: torch.Tensor
    columns: Index
    """The same memory."""
    device: torch.Tensor
    pointer: _Pointer


class CudaCopier:
    """See Copier; everything runs on one stream of its own, in order."""

    def __init__(self, cache: Region, ring: torch.Tensor) -> None:
        self._device = torch.device("cuda", cache.device_id)
        self._cache_bytes = cache.num_bytes
        self.cache = _Pointer(cache.base)
        # Held, since the pointers do not keep it.
        self._memory = ring
        self.ring = _Pointer(ring.data_ptr())
        # Any: torch leaves its constructor untyped.
        stream: Any = torch.cuda.Stream
        self.stream = stream(self._device)
        self._rooms: dict[int, list[_Room]] = defaultdict(list)

    def take_up(self, plan: StagedPlan) -> CudaColumns:
        """See Copier."""
        num_rows = plan.num_rows
        room_rows = max(COLUMN_LEAST_ROWS, 1 << (num_rows - 1).bit_length())
        rooms = self._rooms[room_rows]
        room = rooms.pop() if rooms else self._make_room(room_rows)
        room.columns[: 2 * num_rows] = plan.columns.reshape(-1)
        with torch.cuda.stream(self.stream):
            room.device[: 2 * num_rows].copy_(room.host[: 2 * num_rows], non_blocking=True)
        return CudaColumns(self, plan, room, rooms)

    def scatter(self, num_rows: int, granule_bytes: int, slot_offset: int) -> CudaJob:
        """See Copier."""
        width, page, limit = granule_bytes // WORD_BYTES, slot_offset // ALIGN_BYTES, self._cache_bytes // granule_bytes
        with torch.cuda.stream(self.stream):
            _scatter[_grid(num_rows, width)](self.ring, self.cache, page, num_rows, limit, width, num_warps=NUM_WARPS)
            return CudaJob(self.stream.record_event())

    def _make_room(self, rows: int) -> _Room:
        host = torch.empty(2 * rows, dtype=torch.int32, pin_memory=True)
        device = torch.empty(2 * rows, dtype=torch.int32, device=self._device)
        return _Room(host, host.numpy(), device, _Pointer(device.data_ptr(), torch.int32))


@dataclass(frozen=True, slots=True)
class CudaColumns:
    """See Columns."""

    copier: CudaCopier
    plan: StagedPlan
    room: _Room
    rooms: list[_Room]
    """Where the room is kept for the next plan."""

    def gather(self, chunk: Chunk, slot_offset: int) -> CudaJob:
        """See Columns."""
        copier, width, page = self.copier, self.plan.granule_bytes // WORD_BYTES, slot_offset // ALIGN_BYTES
        index, first, num_rows, total = self.room.pointer, chunk.first, chunk.num_rows, self.plan.num_rows
        with torch.cuda.stream(copier.stream):
            _gather[_grid(num_rows, width)](
                copier.ring, copier.cache, index, page, first, num_rows, total, width,
                num_warps=NUM_WARPS,
            )  # fmt: skip
            return CudaJob(copier.stream.record_event())

    def move(self, target_base: int) -> CudaJob:
        """See Columns."""
        copier, num_rows, width = self.copier, self.plan.num_rows, self.plan.granule_bytes // WORD_BYTES
        row_tiles, col_tiles = _grid(num_rows, width)
        tiles, theirs = row_tiles * col_tiles, _Pointer(target_base)
        with torch.cuda.stream(copier.stream):
            _move[(min(tiles, MOVE_PROGRAMS),)](
                theirs, copier.cache, self.room.pointer, num_rows, tiles, width, num_warps=NUM_WARPS
            )
            return CudaJob(copier.stream.record_event())

    def let_go(self) -> None:
        """See Columns."""
        self.rooms.append(self.room)


def _grid(num_rows: int, width: int) -> tuple[int, int]:
    """Programs over the rows, and over the words of one."""
    cols = min(width, TILE_WORDS)
    return -(-num_rows * cols // TILE_WORDS), width // cols


class _Pointer:
    """Memory at an address, as Triton takes it."""

    def __init__(self, address: int, dtype: torch.dtype = torch.int64) -> None:
        self._address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address."""
        return self._address
