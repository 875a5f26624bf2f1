"""Dispatch and combine as Triton kernels. What each computes is what `reference.py` says, bit by bit.

Ranks see each other's memory by address: an argument named `*_at` holds an int64 address for each rank. Nothing here
waits or signals; between two kernels, whoever launches them makes sure that all ranks are through (`group.py`). That,
the copies in vectors and the overlap of phases are what the CUDA kernels (`nvlink/csrc`) add.

Every product, sum and quotient is one IEEE operation in a fixed order, so launches say `enable_fp_fusion=False`.
"""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST: tl.constexpr = tl.constexpr(448.0)
LEAST_AMAX: tl.constexpr = tl.constexpr(2.0**-64)
RINT: tl.constexpr = tl.constexpr(1.5 * 2.0**23)


@triton.jit
def nearest(values, NUMBER: tl.constexpr):
    """float32 rounded to what NUMBER holds, ties to even; by hand, since Triton's interpreter rounds otherwise."""
    bits = values.to(tl.int32, bitcast=True)
    if tl.float8e4nv == NUMBER:
        # e4m3 has eight steps between two powers of two, and steps of 2^-9 below 2^-6.
        power = (bits & 0x7F800000).to(tl.float32, bitcast=True)
        step = tl.maximum(power * 0.125, 2.0**-9)
        # So high above, float32 has steps of 1.
        return (tl.div_rn(values, step) + RINT - RINT) * step
    elif tl.bfloat16 == NUMBER:
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    else:
        return values


@triton.jit
def route(topk, places, counts, NUM_ENTRIES: tl.constexpr, BLOCK: tl.constexpr):
    """A program for each expert: the places of its entries in order, and how many they are."""
    expert = tl.program_id(0)
    before = 0
    for first in range(0, NUM_ENTRIES, BLOCK):
        at = first + tl.arange(0, BLOCK)
        own = (tl.load(topk + at, mask=at < NUM_ENTRIES, other=-1) == expert).to(tl.int32)
        tl.store(places + at, before + tl.cumsum(own, 0) - own, mask=own == 1)
        before += tl.sum(own, 0)
    tl.store(counts + expert, before)


@triton.jit
def pack(x, rows, hidden, ROW_BYTES: tl.constexpr, FP8: tl.constexpr, NUMBER: tl.constexpr, BLOCK: tl.constexpr):
    """A program for each (token, block of numbers): the row as it travels; in fp8 a block has a scale of its own."""
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    row = rows + token * ROW_BYTES
    numbers = row.to(tl.pointer_type(NUMBER)) + columns
    values = tl.load(x + token * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    if FP8:
        amax = tl.maximum(tl.max(tl.abs(values), 0), LEAST_AMAX)
        largest = amax * 0.0 + LARGEST
        tl.store((row + hidden).to(tl.pointer_type(tl.float32)) + block, tl.div_rn(amax, largest))
        tl.store(numbers, nearest(values * tl.div_rn(largest, amax), NUMBER).to(NUMBER), mask=inside)
    else:
        tl.store(numbers, nearest(values, NUMBER).to(NUMBER), mask=inside)


@triton.jit
def send(
    topk,
    places,
    first_slots,
    rows,
    to_at,
    ROW_BYTES: tl.constexpr,
    TOP_K: tl.constexpr,
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Exact dispatch, a program for each (token, k): the row in its final slot at its expert's rank."""
    entry = tl.program_id(0).to(tl.int64)
    expert = tl.load(topk + entry)
    if expert >= 0:
        slot = tl.load(first_slots + expert) + tl.load(places + entry)
        target = tl.load(to_at + expert // LOCAL).to(tl.pointer_type(tl.uint8)) + slot * ROW_BYTES
        source = rows + entry // TOP_K * ROW_BYTES
        for first in range(0, ROW_BYTES, BLOCK):
            at = first + tl.arange(0, BLOCK)
            tl.store(target + at, tl.load(source + at, mask=at < ROW_BYTES), mask=at < ROW_BYTES)


@triton.jit
def stage(
    topk,
    rows,
    to_at,
    me,
    max_tokens,
    ROW_BYTES: tl.constexpr,
    TOP_K: tl.constexpr,
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """De-duplicated dispatch, a program for each (token, rank): one copy at (me, token) there, if it has an expert."""
    token, rank = tl.program_id(0).to(tl.int64), tl.program_id(1)
    wanted = 0
    for k in range(TOP_K):
        expert = tl.load(topk + token * TOP_K + k)
        wanted += ((expert >= 0) & (expert // LOCAL == rank)).to(tl.int32)
    if wanted > 0:
        target = tl.load(to_at + rank).to(tl.pointer_type(tl.uint8)) + (me * max_tokens + token) * ROW_BYTES
        for first in range(0, ROW_BYTES, BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(rows + token * ROW_BYTES + at, mask=at < ROW_BYTES)
            tl.store(target + at, value, mask=at < ROW_BYTES)


@triton.jit
def spread(slots, staged, rows, ROW_BYTES: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """The rest of it, a program for each (staged token, k): the row in its final slot; -1 is of no expert here."""
    entry = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + entry)
    if slot >= 0:
        source = staged + entry // TOP_K * ROW_BYTES
        for first in range(0, ROW_BYTES, BLOCK):
            at = first + tl.arange(0, BLOCK)
            tl.store(rows + slot * ROW_BYTES + at, tl.load(source + at, mask=at < ROW_BYTES), mask=at < ROW_BYTES)


@triton.jit
def gather(
    slots, ranks, weights, answers_at, out, hidden, ANSWER: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr
):
    """Exact combine, a program for each (token, block): the weighted sum of the K answers in the order of k.

    Also de-duplicated combine at the experts' rank, for staged tokens: of its own answers, others being -1.
    """
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(TOP_K):
        slot = tl.load(slots + token * TOP_K + k)
        if slot >= 0:
            address = tl.load(answers_at + tl.load(ranks + token * TOP_K + k))
            answers = address.to(tl.pointer_type(ANSWER)) + slot * hidden
            weight = tl.load(weights + token * TOP_K + k)
            total += tl.load(answers + columns, mask=inside, other=0.0).to(tl.float32) * weight
    tl.store(out + token * hidden + columns, nearest(total, out.dtype.element_ty).to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_up(
    topk,
    partials_at,
    out,
    me,
    max_tokens,
    hidden,
    ANSWER: tl.constexpr,
    TOP_K: tl.constexpr,
    LOCAL: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """De-duplicated combine at the origin, a program for each (token, block): partial sums in the order of ranks."""
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in range(RANKS):
        wanted = 0
        for k in range(TOP_K):
            expert = tl.load(topk + token * TOP_K + k)
            wanted += ((expert >= 0) & (expert // LOCAL == rank)).to(tl.int32)
        if wanted > 0:
            partials = tl.load(partials_at + rank).to(tl.pointer_type(ANSWER))
            row = partials + (me * max_tokens + token) * hidden
            total += tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + columns, nearest(total, out.dtype.element_ty).to(out.dtype.element_ty), mask=inside)
