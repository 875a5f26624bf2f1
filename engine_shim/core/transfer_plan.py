"""TransferPlan: which bytes of prefill's cache go where in decode's.

Both caches are grids of blocks (see `router.contract.kv`), and in every order the address of one head of one token in
one *slab* (one layer, K or V) is linear:

    address = block * strides.block + slab * strides.slab + head * strides.head + (token % block_tokens) * strides.token

So it is enough to cut the token range where either side changes its block, to join what is contiguous on both sides,
and to repeat the result for each wanted slab, and for each head where heads do not lie side by side. Three cases:

    1  whole blocks: both block_first, or both head_major, with equal block size: a block (of the heads that move) is
       one run of bytes, and so are some layers of it, or of each of its heads. The last block is moved whole too:
       decode writes every later slot before it reads it.
    2  both layer_first with pages, or some layers of pages: whole pages, layer by layer.
    3  everything else: slab by slab; between head_major and the others, or where ranks hold unequal shares of the heads
       of a token-by-token order, token by token as well.

Spans that touch on both sides are joined at last, across blocks, heads, slabs and layers. Posting costs about 7 us per
descriptor (measured, DESIGN section 8), so fewer Spans is the whole point; and a plan of thousands of blocks must not
cost milliseconds, so it is made and kept as columns of numbers.

Of engines with tensor-parallel ranks a plan is between one rank and another: see `head_shares`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from engine_shim.core.head_shares import HeadMove, move_between
from engine_shim.core.layout_match import check_layouts
from router.contract.errors import LayoutMismatch, TransferFailed
from router.contract.kv import BlockTable, KVLayout, KVOrder
from router.contract.rendezvous import PrefillDone, Registration

Rows = npt.NDArray[np.int64]
Columns = npt.NDArray[np.int64]
"""[3, pieces]: src_offset, dst_offset, num_bytes. Each lies in one run of memory, so passes are quick."""

MOST_PIECES = 1 << 22
"""A plan of more would take seconds and hundreds of megabytes to make."""


@dataclass(frozen=True, slots=True)
class Span:
    """One contiguous copy, offsets in bytes from each Region's base."""

    src_offset: int
    dst_offset: int
    num_bytes: int


class SpanTable(Sequence[Span]):
    """Spans as rows of (src_offset, dst_offset, num_bytes)."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Span: ...

    @overload
    def __getitem__(self, at: slice) -> SpanTable: ...

    def __getitem__(self, at: int | slice) -> Span | SpanTable:
        return SpanTable(self.rows[at]) if isinstance(at, slice) else Span(*self.rows[at].tolist())

    def __iter__(self) -> Iterator[Span]:
        return (Span(*row) for row in self.rows.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class TransferPlan:
    """All copies of one transfer."""

    spans: Sequence[Span]

    @property
    def num_bytes(self) -> int:
        """Bytes that move."""
        return int(self.rows[:, 2].sum())

    @property
    def rows(self) -> Rows:
        """The spans as rows of (src_offset, dst_offset, num_bytes)."""
        if isinstance(self.spans, SpanTable):
            return self.spans.rows
        columns = [(span.src_offset, span.dst_offset, span.num_bytes) for span in self.spans]
        return np.array(columns, dtype=np.int64).reshape(-1, 3)


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a transfer: its layout and the sequence's blocks there."""

    layout: KVLayout
    blocks: BlockTable


def plan_registered(
    registration: Registration, done: PrefillDone, source: KVLayout, target: KVLayout, layers: range | None = None
) -> TransferPlan:
    """The copies that a matched pair needs, from prefill's cache (`source`) to decode's seats (`target`): of `layers`.

    Raises:
        TransferFailed: decode wants more tokens than prefill has computed.
        LayoutMismatch: as `plan_transfer`.
    """
    if registration.num_tokens > done.num_tokens:
        raise TransferFailed(
            f"Decode wants {registration.num_tokens} tokens, prefill computed {done.num_tokens}; "
            "the two legs carry different prompts."
        )
    src, dst = Side(source, done.blocks), Side(target, registration.seats)
    return plan_transfer(src, dst, registration.first_token, registration.num_tokens, layers)


def plan_transfer(src: Side, dst: Side, first_token: int, num_tokens: int, layers: range | None = None) -> TransferPlan:
    """Plan the copies that move tokens `first_token <= t < num_tokens` from one rank to another.

    Spans never overlap at the destination and cover exactly the wanted tokens and layers of the heads that move between
    these two ranks; in case 1 also the unused tail of the last block.

    Args:
        src: prefill's layout and blocks; block i holds tokens from i * block_tokens.
        dst: decode's layout and Seats, likewise.
        first_token: first token to move.
        num_tokens: end of the range; not above either side's capacity.
        layers: of those tokens only these, neighbours in rising order; None: all.
    Returns:
        TransferPlan; empty when the range is, or when this rank of prefill has nothing for that rank of decode.
    Raises:
        LayoutMismatch: see `check_layouts`; or pages, and the range begins inside one; or more than MOST_PIECES.
        TransferFailed: a block lies outside its cache or the tables are too short. Blame: the peer that sent them.
    """
    check_layouts(src.layout, dst.layout)
    move = move_between(src.layout, dst.layout)
    if first_token >= num_tokens or move is None:
        return TransferPlan(())
    tables = _table(src, num_tokens), _table(dst, num_tokens)
    whole_blocks = _moves_whole_blocks(src.layout, dst.layout, move, first_token)
    if whole_blocks and layers is None:
        return _plan(_join(_block_pieces(src, dst, tables, move, (first_token, num_tokens))))
    layers = range(src.layout.num_layers) if layers is None else layers
    if whole_blocks and not src.layout.has_pages:
        return _plan(_join_anywhere(_layer_pieces(src, dst, tables, move, (first_token, num_tokens), layers)))
    if src.layout.has_pages:
        return _plan(_join_anywhere(_page_pieces(src, dst, tables, (first_token, num_tokens), layers)))
    runs = _token_pieces(src.layout, dst.layout, tables, move, (first_token, num_tokens))
    return _plan(_join_anywhere(_repeat(runs, src.layout, dst.layout, move, layers)))


def _plan(columns: Columns) -> TransferPlan:
    return TransferPlan(SpanTable(columns.T))


_Tables = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
_Range = tuple[int, int]


def _table(side: Side, num_tokens: int) -> npt.NDArray[np.int64]:
    """The blocks as a column, each of them inside its cache."""
    if len(side.blocks) < side.layout.blocks_for(num_tokens):
        raise TransferFailed(
            f"A block table of {len(side.blocks)} blocks of {side.layout.block_tokens} tokens is too short "
            f"for {num_tokens} tokens."
        )
    table = np.fromiter(side.blocks, dtype=np.int64, count=len(side.blocks))
    if table.min() < 0 or table.max() >= side.layout.num_blocks:
        raise TransferFailed(f"A block table names a block outside its cache of {side.layout.num_blocks} blocks.")
    return table


def _moves_whole_blocks(src: KVLayout, dst: KVLayout, move: HeadMove, first_token: int) -> bool:
    if src.order is not dst.order or src.block_tokens != dst.block_tokens or first_token % src.block_tokens:
        return False
    if src.order is KVOrder.HEAD_MAJOR:
        return True
    return src.order is KVOrder.BLOCK_FIRST and move.num_heads == src.num_kv_heads == dst.num_kv_heads


def _block_pieces(src: Side, dst: Side, tables: _Tables, move: HeadMove, wanted: _Range) -> Columns:
    """The moving heads of whole blocks, which are one run of each block."""
    head_bytes = src.layout.block_bytes // src.layout.num_kv_heads
    heads = (move.source_head, move.target_head)
    blocks = _block_range(src.layout, wanted)
    starts = [
        side.layout.block_bytes * table[blocks] + head * head_bytes
        for side, table, head in zip((src, dst), tables, heads, strict=True)
    ]
    return np.stack((*starts, np.full_like(starts[0], move.num_heads * head_bytes)))


def _layer_pieces(src: Side, dst: Side, tables: _Tables, move: HeadMove, wanted: _Range, layers: range) -> Columns:
    """These layers of `_block_pieces`, which are one run of each block, or of each moving head of it."""
    strides = src.layout.strides
    layer_bytes = src.layout.num_parts * strides.slab
    source, target, sizes = _block_pieces(src, dst, tables, move, wanted)
    first = layers.start * layer_bytes
    runs = np.stack((source + first, target + first, np.full_like(sizes, len(layers) * layer_bytes)))
    by_head = src.layout.order is KVOrder.HEAD_MAJOR
    heads = np.arange(move.num_heads if by_head else 1, dtype=np.int64) * strides.head
    return _over(runs, heads, heads)


def _page_pieces(src: Side, dst: Side, tables: _Tables, wanted: _Range, layers: range) -> Columns:
    if wanted[0] % src.layout.block_tokens:
        raise LayoutMismatch(f"Pages of {src.layout.block_tokens} tokens cannot be moved from token {wanted[0]} on.")
    page_bytes = src.layout.num_parts * src.layout.block_tokens * src.layout.slab_token_bytes
    layer_first = src.layout.order is KVOrder.LAYER_FIRST
    block_bytes = page_bytes if layer_first else src.layout.block_bytes
    starts = [block_bytes * table[_block_range(src.layout, wanted)] for table in tables]
    runs = _join(np.stack((*starts, np.full_like(starts[0], page_bytes))))
    numbers = np.array(layers, dtype=np.int64)
    steps = [numbers * page_bytes * (side.layout.num_blocks if layer_first else 1) for side in (src, dst)]
    return _over(runs, steps[0], steps[1])


def _block_range(layout: KVLayout, wanted: _Range) -> slice:
    return slice(wanted[0] // layout.block_tokens, layout.blocks_for(wanted[1]))


def _token_pieces(src: KVLayout, dst: KVLayout, tables: _Tables, move: HeadMove, wanted: _Range) -> Columns:
    """Slab 0 and the first moving head, or all of them where they lie side by side: cut at each block border of either
    side, and at each token where tokens have gaps between them."""
    width = _width(src, dst, move)
    if src.strides.token == dst.strides.token == width:
        borders = [np.arange(wanted[0] - wanted[0] % size + size, wanted[1], size) for size in _block_sizes(src, dst)]
        cuts = np.unique(np.concatenate((wanted, *borders)))
    else:
        cuts = np.arange(wanted[0], wanted[1] + 1)
    tokens, sizes = cuts[:-1], np.diff(cuts) * width
    addresses = [
        table[tokens // layout.block_tokens] * layout.strides.block
        + tokens % layout.block_tokens * layout.strides.token
        + head * layout.strides.head
        for layout, table, head in zip((src, dst), tables, (move.source_head, move.target_head), strict=True)
    ]
    return _join(np.stack((*addresses, sizes)))


def _block_sizes(src: KVLayout, dst: KVLayout) -> set[int]:
    return {src.block_tokens, dst.block_tokens}


def _width(src: KVLayout, dst: KVLayout, move: HeadMove) -> int:
    """Bytes of a token in a slab that lie side by side on both sides: all moving heads, or one."""
    head_bytes = src.strides.head_bytes
    side_by_side = src.strides.head == dst.strides.head == head_bytes
    return head_bytes * (move.num_heads if side_by_side else 1)


def _repeat(runs: Columns, src: KVLayout, dst: KVLayout, move: HeadMove, layers: range) -> Columns:
    """The runs for every slab of these layers, and for every head where they do not lie side by side."""
    heads = np.arange(move.num_heads * src.strides.head_bytes // _width(src, dst, move), dtype=np.int64)
    slabs = np.arange(layers.start * src.num_parts, layers.stop * src.num_parts, dtype=np.int64)
    pieces = runs.shape[1] * len(heads) * len(slabs)
    if pieces > MOST_PIECES:
        raise LayoutMismatch(
            f"Between the orders {src.order} and {dst.order} this transfer has {pieces} pieces; serve both sides with "
            "the same KV order, head_major where their tensor-parallel sizes differ."
        )
    steps = [
        (heads[:, None] * layout.strides.head + slabs[None, :] * layout.strides.slab).reshape(-1)
        for layout in (src, dst)
    ]
    return _over(runs, steps[0], steps[1])


def _over(runs: Columns, src_steps: npt.NDArray[np.int64], dst_steps: npt.NDArray[np.int64]) -> Columns:
    """Every run at every step."""
    steps = np.stack((src_steps, dst_steps, src_steps * 0))
    return (steps[:, :, None] + runs[:, None, :]).reshape(3, -1)


def _join(columns: Columns) -> Columns:
    """Neighbours that are contiguous on both sides become one."""
    source, target, sizes = columns
    first = np.ones(len(sizes), dtype=np.bool_)
    np.not_equal(source[:-1] + sizes[:-1], source[1:], out=first[1:])
    first[1:] |= target[:-1] + sizes[:-1] != target[1:]
    starts = np.flatnonzero(first)
    if len(starts) == len(sizes):
        return columns
    return np.stack((source[starts], target[starts], np.add.reduceat(sizes, starts)))


def _join_anywhere(columns: Columns) -> Columns:
    """As `_join`, for pieces in any order."""
    return _join(columns[:, np.argsort(columns[0], kind="stable")])
