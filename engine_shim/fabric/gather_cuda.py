"""Gather, scatter and move of granules in GPU memory: one kernel each, written in Triton, which comes with torch.

A program moves COLS of the WIDTH 8-byte words of each of ROWS granules; all are powers of two, and every access is 16
bytes wide: slots begin at pages, so their words are found by a page number that the compiler sees multiplied. Gather
also leaves the target column behind the granules; scatter reads it from there, on the GPU, and skips what lies outside
the Region. Move writes over NVLink, which few programs fill: the others would only keep the GPU from its work.

The columns of a plan are uploaded once, source column first, whatever the number of its chunks. A move is the quickest
way where there is one, so the host's share of it counts most: upload and kernel are one CUDA graph, captured once for a
room and a width. Before the columns lies a head, by which the graph's kernel learns what differs between moves:

    room    int64: number of rows, source's base, target's base, unused | int32: source column | target column
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from engine_shim.core.staging import INDEX_BYTES, Chunk, Index, StagedPlan
from engine_shim.fabric.ring import ALIGN_BYTES
from router.contract.kv import Region

WORD_BYTES = 8
TILE_WORDS = 2048
NUM_WARPS = 8
MOVE_PROGRAMS = 128
COLUMN_LEAST_ROWS = 4096
HEAD = 8
"""Numbers (int32) before the columns."""
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


@triton.jit  # type: ignore[untyped-decorator]
def _move(room, WIDTH: tl.constexpr, HEAD: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    COLS: tl.constexpr = WIDTH if WIDTH < _TILE_WORDS else _TILE_WORDS  # noqa: N806
    ROWS: tl.constexpr = _TILE_WORDS // COLS  # noqa: N806
    COL_TILES: tl.constexpr = WIDTH // COLS  # noqa: N806
    num_rows = tl.load(room)
    bases = room.to(tl.pointer_type(tl.int64))
    before = tl.load(bases + 1).to(tl.pointer_type(tl.int64))
    after = tl.load(bases + 2).to(tl.pointer_type(tl.int64))
    num_tiles = tl.cdiv(num_rows, ROWS) * COL_TILES
    for turn in range(0, tl.cdiv(num_tiles, tl.num_programs(0))):
        # A tile after the last has no row that is there.
        tile = turn * tl.num_programs(0) + tl.program_id(0)
        rows = tile // COL_TILES * ROWS + tl.arange(0, ROWS)
        cols = tile % COL_TILES * COLS + tl.arange(0, COLS)
        there = rows < num_rows
        source = tl.load(room + HEAD + rows, mask=there, other=0).to(tl.int64)
        target = tl.load(room + HEAD + num_rows + rows, mask=there, other=0).to(tl.int64)
        words = tl.load(before + source[:, None] * WIDTH + cols[None, :], mask=there[:, None])
        tl.store(after + target[:, None] * WIDTH + cols[None, :], words, mask=there[:, None])


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
    """int32, pinned: the head, then the columns."""
    numbers: Index
    """The same memory."""
    head: npt.NDArray[np.int64]
    """The same memory."""
    device: torch.Tensor
    columns: _Pointer
    """Behind the head, on the GPU."""
    moves: dict[int, torch.cuda.CUDAGraph] = field(default_factory=dict)
    """Upload and kernel, by the granules' width in words."""


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
        room.numbers[HEAD : HEAD + 2 * num_rows] = plan.columns.reshape(-1)
        return CudaColumns(self, plan, room, rooms)

    def scatter(self, num_rows: int, granule_bytes: int, slot_offset: int) -> CudaJob:
        """See Copier."""
        width, page, limit = granule_bytes // WORD_BYTES, slot_offset // ALIGN_BYTES, self._cache_bytes // granule_bytes
        with torch.cuda.stream(self.stream):
            _scatter[_grid(num_rows, width)](self.ring, self.cache, page, num_rows, limit, width, num_warps=NUM_WARPS)
            return CudaJob(self.stream.record_event())

    def _make_room(self, rows: int) -> _Room:
        host = torch.zeros(HEAD + 2 * rows, dtype=torch.int32, pin_memory=True)
        # Of the stream's own memory: that of the engine's stream may be what a kernel has yet to write to.
        with torch.cuda.stream(self.stream):
            device = torch.empty(HEAD + 2 * rows, dtype=torch.int32, device=self._device)
        numbers = host.numpy()
        columns = _Pointer(device.data_ptr() + HEAD * INDEX_BYTES, torch.int32)
        return _Room(host, numbers, numbers[:HEAD].view(np.int64), device, columns)

    def move_graph(self, room: _Room, width: int) -> torch.cuda.CUDAGraph:
        """What moves a plan of this width whose numbers are in the room; captured at first."""
        if width not in room.moves:
            room.head[0] = 0
            with torch.cuda.stream(self.stream):
                # The first launch compiles, which no capture may contain; of no rows, it moves nothing.
                self._upload_and_move(room, width)
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(capture_error_mode="thread_local")
                self._upload_and_move(room, width)
                graph.capture_end()
            room.moves[width] = graph
        return room.moves[width]

    def _upload_and_move(self, room: _Room, width: int) -> None:
        room.device.copy_(room.host, non_blocking=True)
        _move[(MOVE_PROGRAMS,)](room.device, width, HEAD, num_warps=NUM_WARPS)


@dataclass(slots=True)
class CudaColumns:
    """See Columns."""

    copier: CudaCopier
    plan: StagedPlan
    room: _Room
    rooms: list[_Room]
    """Where the room is kept for the next plan."""
    is_uploaded: bool = False

    def gather(self, chunk: Chunk, slot_offset: int) -> CudaJob:
        """See Columns."""
        copier, width, page = self.copier, self.plan.granule_bytes // WORD_BYTES, slot_offset // ALIGN_BYTES
        index, first, num_rows, total = self.room.columns, chunk.first, chunk.num_rows, self.plan.num_rows
        with torch.cuda.stream(copier.stream):
            if not self.is_uploaded:
                end = HEAD + 2 * total
                self.room.device[HEAD:end].copy_(self.room.host[HEAD:end], non_blocking=True)
                self.is_uploaded = True
            _gather[_grid(num_rows, width)](
                copier.ring, copier.cache, index, page, first, num_rows, total, width,
                num_warps=NUM_WARPS,
            )  # fmt: skip
            return CudaJob(copier.stream.record_event())

    def move(self, source_base: int, target_base: int) -> CudaJob:
        """See Columns."""
        copier, room = self.copier, self.room
        graph = copier.move_graph(room, self.plan.granule_bytes // WORD_BYTES)
        room.head[:3] = self.plan.num_rows, source_base, target_base
        with torch.cuda.stream(copier.stream):
            graph.replay()
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
