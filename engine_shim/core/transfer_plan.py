"""TransferPlan: which bytes of prefill's cache go where in decode's.

Both caches are grids of blocks (see `router.contract.kv`), and in both orders the address of one token in one *slab*
(one layer, K or V) is linear in its block and in its place inside the block:

    address = slab * slab_stride + block * block_stride + (token % block_tokens) * slab_token_bytes

                    slab_stride                     block_stride
    block_first     block_tokens * token_slab       a whole block
    layer_first     that * num_blocks               block_tokens * token_slab

So it is enough to cut the token range where either side changes its block, to join what is contiguous on both sides,
and to repeat the result for each slab. Three cases:

    1  both block_first with equal block size: a block is one run of bytes, so whole blocks are moved. The last block is
       moved whole too: decode writes every later slot before it reads it.
    2  both layer_first with pages: whole pages, layer by layer.
    3  everything else: slab by slab.

Spans that touch on both sides are joined at last, across blocks, slabs and layers. Posting costs about 7 us per
descriptor (measured, DESIGN section 8), so fewer Spans is the whole point; and a plan of thousands of blocks must not
itself cost milliseconds, so it is made and kept as columns of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from router.contract.errors import LayoutMismatch, TransferFailed
from router.contract.kv import BlockTable, KVLayout, KVOrder
from router.contract.rendezvous import PrefillDone, Registration

Rows = npt.NDArray[np.int64]


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


def plan_registered(registration: Registration, done: PrefillDone, source: KVLayout, target: KVLayout) -> TransferPlan:
    """The copies that a matched pair needs, from prefill's cache (`source`) to decode's seats (`target`).

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
    return plan_transfer(src, dst, registration.first_token, registration.num_tokens)


def check_layouts(src: KVLayout, dst: KVLayout) -> None:
    """Both caches hold the same values, if in another arrangement.

    Raises:
        LayoutMismatch: layers, heads, head size or dtype differ. Blame: deployment.
    """
    ours = (src.num_layers, src.num_kv_heads, src.head_dim, src.dtype)
    theirs = (dst.num_layers, dst.num_kv_heads, dst.head_dim, dst.dtype)
    if ours != theirs:
        raise LayoutMismatch(
            "Prefill and decode hold different KV caches (layers, KV heads, head size, dtype): "
            f"{ours} against {theirs}; serve the same checkpoint with the same KV dtype on both."
        )
    if (src.has_pages or dst.has_pages) and _page_facts(src) != _page_facts(dst):
        raise LayoutMismatch(
            "Blocks of these KV caches can only move whole, and theirs differ (block tokens, order): "
            f"{_page_facts(src)} against {_page_facts(dst)}; serve both with the same engine and block size."
        )


def _page_facts(layout: KVLayout) -> tuple[bool, int, KVOrder]:
    return layout.has_pages, layout.block_tokens, layout.order


def plan_transfer(src: Side, dst: Side, first_token: int, num_tokens: int) -> TransferPlan:
    """Plan the copies that move tokens `first_token <= t < num_tokens`.

    Spans never overlap at the destination and cover exactly the wanted tokens; in case 1 also the unused tail of the
    last block.

    Args:
        src: prefill's layout and blocks; block i holds tokens from i * block_tokens.
        dst: decode's layout and Seats, likewise.
        first_token: first token to move.
        num_tokens: end of the range; not above either side's capacity.
    Returns:
        TransferPlan; empty when the range is.
    Raises:
        LayoutMismatch: see `check_layouts`; or pages, and the range begins inside one.
        TransferFailed: a block lies outside its cache or the tables are too short. Blame: the peer that sent them.
    """
    check_layouts(src.layout, dst.layout)
    if first_token >= num_tokens:
        return TransferPlan(())
    _check_side(src, num_tokens)
    _check_side(dst, num_tokens)
    if _moves_whole_blocks(src.layout, dst.layout, first_token):
        return TransferPlan(SpanTable(_join(_block_pieces(src, dst, first_token, num_tokens, src.layout.block_bytes))))
    if src.layout.has_pages:
        return TransferPlan(SpanTable(_join_anywhere(_page_pieces(src, dst, first_token, num_tokens))))
    runs = _join(_token_pieces(src, dst, first_token, num_tokens))
    return TransferPlan(SpanTable(_join_anywhere(_over_slabs(runs, src.layout, dst.layout))))


def _check_side(side: Side, num_tokens: int) -> None:
    if len(side.blocks) < side.layout.blocks_for(num_tokens):
        raise TransferFailed(
            f"A block table of {len(side.blocks)} blocks of {side.layout.block_tokens} tokens is too short "
            f"for {num_tokens} tokens."
        )
    if min(side.blocks) < 0 or max(side.blocks) >= side.layout.num_blocks:
        raise TransferFailed(f"A block table names a block outside its cache of {side.layout.num_blocks} blocks.")


def _moves_whole_blocks(src: KVLayout, dst: KVLayout, first_token: int) -> bool:
    both_block_first = src.order is KVOrder.BLOCK_FIRST and dst.order is KVOrder.BLOCK_FIRST
    return both_block_first and src.block_tokens == dst.block_tokens and first_token % src.block_tokens == 0


def _page_pieces(src: Side, dst: Side, first_token: int, num_tokens: int) -> Rows:
    if first_token % src.layout.block_tokens:
        raise LayoutMismatch(f"Pages of {src.layout.block_tokens} tokens cannot be moved from token {first_token} on.")
    page_bytes = 2 * src.layout.block_tokens * src.layout.slab_token_bytes
    runs = _join(_block_pieces(src, dst, first_token, num_tokens, page_bytes))
    layers = np.arange(src.layout.num_layers, dtype=np.int64)
    strides = [layers * page_bytes * side.layout.num_blocks for side in (src, dst)]
    steps = np.stack((*strides, layers * 0), axis=1)
    return (steps[:, None, :] + runs[None, :, :]).reshape(-1, 3)


def _block_pieces(src: Side, dst: Side, first_token: int, num_tokens: int, size: int) -> Rows:
    wanted = slice(first_token // src.layout.block_tokens, src.layout.blocks_for(num_tokens))
    starts = [size * np.array(side.blocks[wanted], dtype=np.int64) for side in (src, dst)]
    return np.stack((*starts, np.full_like(starts[0], size)), axis=1)


def _token_pieces(src: Side, dst: Side, first_token: int, num_tokens: int) -> Rows:
    """Slab 0 only: cut at each block border of either side."""
    borders = [
        np.arange(first_token - first_token % block_tokens + block_tokens, num_tokens, block_tokens)
        for block_tokens in {src.layout.block_tokens, dst.layout.block_tokens}
    ]
    cuts = np.unique(np.concatenate(([first_token, num_tokens], *borders)))
    tokens, sizes = cuts[:-1], np.diff(cuts) * src.layout.slab_token_bytes
    return np.stack((_addresses(src, tokens), _addresses(dst, tokens), sizes), axis=1)


def _addresses(side: Side, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    layout = side.layout
    blocks = np.array(side.blocks, dtype=np.int64)[tokens // layout.block_tokens]
    return blocks * _block_stride(layout) + tokens % layout.block_tokens * layout.slab_token_bytes


def _block_stride(layout: KVLayout) -> int:
    if layout.order is KVOrder.BLOCK_FIRST:
        return layout.block_bytes
    return layout.block_tokens * layout.slab_token_bytes


def _slab_stride(layout: KVLayout) -> int:
    slab_block_bytes = layout.block_tokens * layout.slab_token_bytes
    return slab_block_bytes if layout.order is KVOrder.BLOCK_FIRST else slab_block_bytes * layout.num_blocks


def _over_slabs(runs: Rows, src: KVLayout, dst: KVLayout) -> Rows:
    slabs = np.arange(2 * src.num_layers, dtype=np.int64)
    steps = np.stack((slabs * _slab_stride(src), slabs * _slab_stride(dst), slabs * 0), axis=1)
    return (steps[:, None, :] + runs[None, :, :]).reshape(-1, 3)


def _join(rows: Rows) -> Rows:
    """Neighbours that are contiguous on both sides become one row."""
    ends = rows[:-1, :2] + rows[:-1, 2:]
    first = np.concatenate(([True], (ends != rows[1:, :2]).any(axis=1)))
    if first.all():
        return rows
    starts = np.flatnonzero(first)
    joined = rows[starts].copy()
    joined[:, 2] = np.add.reduceat(rows[:, 2], starts)
    return joined


def _join_anywhere(rows: Rows) -> Rows:
    """As `_join`, for rows in any order."""
    return _join(rows[np.argsort(rows[:, 0], kind="stable")])
