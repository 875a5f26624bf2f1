"""The reference engine's kernels on a GPU, in Triton, which comes with torch.

    enter_heads     norm, rotate and store: from the rows' projections to queries, and to keys and values in the cache
    attend_paged    one query row against its own blocks, wherever they lie; long tables are split among programs
    merge_splits    the splits of a row's attention as one
    gate            silu(gate) * up
    norm_rows       RMSNorm, of which torch's own takes thrice as long for one row

Nothing here depends on where a block lies, so a CUDA graph of these launches serves any batch of its size: blocks,
positions and tables are read on the GPU. A row whose position is negative is padding: it is neither stored nor seen.
Strides are in elements. Sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_rows"])
def enter_heads(
    heads, positions, blocks, queries, cache, q_norm, k_norm, cos, sin, num_rows, eps,
    BLOCK_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr, PART_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr, ROWS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """A program for ROWS rows of one head of [rows, query heads | key heads | value heads, HEAD_DIM]."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, HALF)
    position = tl.load(positions + rows, mask=rows < num_rows, other=-1)
    there = position >= 0
    mask = there[:, None] & (pair[None, :] < HEAD_DIM // 2)
    read = heads + (rows[:, None] * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM + pair[None, :]
    left = tl.load(read, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(read + HEAD_DIM // 2, mask=mask, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KV_HEADS:
        if NORMED:
            power = (tl.sum(left * left, 1) + tl.sum(right * right, 1)) / HEAD_DIM
            scale = tl.rsqrt(power + eps)[:, None]
            weight = (q_norm if head < NUM_HEADS else k_norm) + pair[None, :]
            real = pair[None, :] < HEAD_DIM // 2
            left *= scale * tl.load(weight, mask=real, other=0.0).to(tl.float32)
            right *= scale * tl.load(weight + HEAD_DIM // 2, mask=real, other=0.0).to(tl.float32)
        # The tables hold each angle twice, the first half of the sines with a minus.
        turn = position[:, None] * HEAD_DIM + HEAD_DIM // 2 + pair[None, :]
        cosine = tl.load(cos + turn, mask=mask, other=0.0).to(tl.float32)
        sine = tl.load(sin + turn, mask=mask, other=0.0).to(tl.float32)
        left, right = left * cosine - right * sine, right * cosine + left * sine
    if head < NUM_HEADS:
        write = queries + (rows[:, None] * NUM_HEADS + head) * HEAD_DIM + pair[None, :]
    else:
        block = tl.load(blocks + rows, mask=there, other=0)
        kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
        part = (head - NUM_HEADS) // NUM_KV_HEADS
        place = block * BLOCK_STRIDE + position % BLOCK_TOKENS * TOKEN_STRIDE
        write = cache + place[:, None] + part * PART_STRIDE + kv_head * HEAD_STRIDE + pair[None, :]
    kind = queries.dtype.element_ty
    tl.store(write, left.to(kind), mask=mask)
    tl.store(write + HEAD_DIM // 2, right.to(kind), mask=mask)


@triton.jit(do_not_specialize=["table_stride"])
def attend_paged(
    queries, cache, tables, table_stride, slots, positions, sums, tops, scale,
    BLOCK_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr, PART_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, GROUP: tl.constexpr, MEMBERS: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A program for one split of one row's tokens and one KV head, whose GROUP query heads read the same keys.

    `sums` [rows, heads, splits, DIMS + 1] get sum(p v) and, behind it, sum(p); `tops` [rows, heads, splits] the maximum
    that both are relative to, in powers of two.
    """
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    splits, heads = tl.num_programs(2), tl.num_programs(1) * GROUP
    length = (tl.load(positions + row) + 1).to(tl.int32)
    share = tl.cdiv(tl.cdiv(length, splits), TILE) * TILE
    begin = split * share
    end = tl.minimum(begin + share, length)
    table = tables + tl.load(slots + row) * table_stride
    member, dim = tl.arange(0, MEMBERS), tl.arange(0, DIMS)
    head = row * heads + kv_head * GROUP + member
    real = (member[:, None] < GROUP) & (dim[None, :] < HEAD_DIM)
    query = tl.load(queries + head[:, None] * HEAD_DIM + dim[None, :], mask=real, other=0.0)
    top = tl.full([MEMBERS], -float("inf"), tl.float32)
    total = tl.zeros([MEMBERS], tl.float32)
    mixed = tl.zeros([MEMBERS, DIMS], tl.float32)
    for first in range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        there = token < end
        block = tl.load(table + token // BLOCK_TOKENS, mask=there, other=0).to(tl.int64)
        place = cache + block * BLOCK_STRIDE + token % BLOCK_TOKENS * TOKEN_STRIDE + kv_head * HEAD_STRIDE
        mask = there[:, None] & (dim[None, :] < HEAD_DIM)
        keys = tl.load(place[:, None] + dim[None, :], mask=mask, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(there[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        values = tl.load(place[:, None] + PART_STRIDE + dim[None, :], mask=mask, other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * fade + tl.sum(weights, 1)
        top = higher
    at = head * splits + split
    tl.store(sums + at[:, None] * (DIMS + 1) + dim[None, :], mixed, mask=member[:, None] < GROUP)
    tl.store(sums + at * (DIMS + 1) + DIMS, total, mask=member < GROUP)
    tl.store(tops + at, top, mask=member < GROUP)


@triton.jit
def merge_splits(
    sums, tops, mixed, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr
):  # fmt: skip
    """A program for one head of one row of `mixed` [rows, heads, HEAD_DIM]; zeros where no split saw a token."""
    head = tl.program_id(0).to(tl.int64)
    split, dim = tl.arange(0, SPLITS), tl.arange(0, DIMS)
    top = tl.load(tops + head * SPLITS + split)
    highest = tl.max(top, 0)
    # A split without tokens has -inf, and so have all of them in a row of padding.
    weight = tl.where(top == -float("inf"), 0.0, tl.exp2(top - highest))
    at = sums + (head * SPLITS + split) * (DIMS + 1)
    total = tl.sum(weight * tl.load(at + DIMS), 0)
    out = tl.sum(weight[:, None] * tl.load(at[:, None] + dim[None, :]), 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(mixed + head * HEAD_DIM + dim, out.to(mixed.dtype.element_ty), mask=dim < HEAD_DIM)


@triton.jit(do_not_specialize=["width"])
def gate(gate_up, out, width, BLOCK: tl.constexpr):
    """A program for BLOCK columns of one row: silu(gate) * up, of [rows, width | width]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (x / (1.0 + tl.exp(-x)) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["width", "eps"])
def norm_rows(x, weight, out, width, eps, BLOCK: tl.constexpr):
    """A program for one row of [rows, width], at most BLOCK wide."""
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    scaled = values * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + column, scaled.to(out.dtype.element_ty), mask=inside)
