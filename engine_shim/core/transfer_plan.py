"""TransferPlan: which bytes of prefill's cache go where in decode's.

Both caches are grids of blocks (see `router.contract.kv`), and in both orders the address of one token in one *slab*
(one layer, K or V) is linear in its block and in its place inside the block:

    address = slab * slab_stride + block * block_stride + (token % block_tokens) * slab_token_bytes

                    slab_stride                     block_stride
    block_first     block_tokens * token_slab       a whole block
    layer_first     that * num_blocks               block_tokens * token_slab

So it is enough to cut the token range where either side changes its block, to join what is contiguous on both sides,
and to repeat the result for each slab. Two cases:

    1  both block_first with equal block size: a block is one run of bytes, so whole blocks are moved. The last block is
       moved whole too: decode writes every later slot before it reads it.
    2  everything else: slab by slab.

Posting costs about 7 us per descriptor (measured, DESIGN section 8), so fewer Spans is the whole point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from router.contract.errors import LayoutMismatch, TransferFailed
from router.contract.kv import BlockTable, KVLayout, KVOrder
from router.contract.rendezvous import PrefillDone, Registration


@dataclass(frozen=True, slots=True)
class Span:
    """One contiguous copy, offsets in bytes from each Region's base."""

    src_offset: int
    dst_offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """All copies of one transfer."""

    spans: tuple[Span, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that move."""
        return sum(span.num_bytes for span in self.spans)


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
        LayoutMismatch: see `check_layouts`.
        TransferFailed: a block lies outside its cache or the tables are too short. Blame: the peer that sent them.
    """
    check_layouts(src.layout, dst.layout)
    if first_token >= num_tokens:
        return TransferPlan(())
    _check_side(src, num_tokens)
    _check_side(dst, num_tokens)
    if _moves_whole_blocks(src.layout, dst.layout, first_token):
        return TransferPlan(tuple(_join(_block_pieces(src, dst, first_token, num_tokens))))
    runs = tuple(_join(_token_pieces(src, dst, first_token, num_tokens)))
    return TransferPlan(tuple(_over_slabs(runs, src.layout, dst.layout)))


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


def _block_pieces(src: Side, dst: Side, first_token: int, num_tokens: int) -> Iterator[Span]:
    size = src.layout.block_bytes
    for index in range(first_token // src.layout.block_tokens, src.layout.blocks_for(num_tokens)):
        yield Span(src.blocks[index] * size, dst.blocks[index] * size, size)


def _token_pieces(src: Side, dst: Side, first_token: int, num_tokens: int) -> Iterator[Span]:
    """Slab 0 only: cut at each block border of either side."""
    token = first_token
    while token < num_tokens:
        left = min(_tokens_to_border(src.layout, token), _tokens_to_border(dst.layout, token), num_tokens - token)
        yield Span(_address(src, token), _address(dst, token), left * src.layout.slab_token_bytes)
        token += left


def _tokens_to_border(layout: KVLayout, token: int) -> int:
    return layout.block_tokens - token % layout.block_tokens


def _address(side: Side, token: int) -> int:
    layout = side.layout
    block, place = side.blocks[token // layout.block_tokens], token % layout.block_tokens
    return block * _block_stride(layout) + place * layout.slab_token_bytes


def _block_stride(layout: KVLayout) -> int:
    if layout.order is KVOrder.BLOCK_FIRST:
        return layout.block_bytes
    return layout.block_tokens * layout.slab_token_bytes


def _slab_stride(layout: KVLayout) -> int:
    slab_block_bytes = layout.block_tokens * layout.slab_token_bytes
    return slab_block_bytes if layout.order is KVOrder.BLOCK_FIRST else slab_block_bytes * layout.num_blocks


def _over_slabs(runs: tuple[Span, ...], src: KVLayout, dst: KVLayout) -> Iterator[Span]:
    src_stride, dst_stride = _slab_stride(src), _slab_stride(dst)
    for slab in range(2 * src.num_layers):
        for run in runs:
            yield Span(run.src_offset + slab * src_stride, run.dst_offset + slab * dst_stride, run.num_bytes)


def _join(pieces: Iterable[Span]) -> Iterator[Span]:
    """Neighbours that are contiguous on both sides become one Span."""
    last: Span | None = None
    for piece in pieces:
        if last is None:
            last = piece
        elif (
            last.src_offset + last.num_bytes == piece.src_offset
            and last.dst_offset + last.num_bytes == piece.dst_offset
        ):
            last = Span(last.src_offset, last.dst_offset, last.num_bytes + piece.num_bytes)
        else:
            yield last
            last = piece
    if last is not None:
        yield last
