"""Where each byte of a KV cache lies, told element by element: the slow twin of `KVLayout.strides` and of plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from engine_shim.core.head_shares import moves_to
from engine_shim.core.transfer_plan import Side, TransferPlan
from router.contract.kv import KVLayout, KVOrder

HEAD_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1}


def place_of(layout: KVLayout, block: int, slab: int, token: int, head: int) -> int:
    """First byte of one head of one token in one slab; `head` counts within the rank."""
    of_layers = layout.num_layers * (1 if layout.latent else 2)
    sizes, axes = {
        KVOrder.BLOCK_FIRST: ((of_layers, layout.block_tokens, layout.num_kv_heads), (block, slab, token, head)),
        KVOrder.LAYER_FIRST: (
            (layout.num_blocks, layout.block_tokens, layout.num_kv_heads),
            (slab, block, token, head),
        ),
        KVOrder.HEAD_MAJOR: ((layout.num_kv_heads, of_layers, layout.block_tokens), (block, head, slab, token)),
    }[layout.order]
    at = axes[0]
    for size, axis in zip(sizes, axes[1:], strict=True):
        at = at * size + axis
    return at * layout.head_dim * HEAD_SIZES[layout.dtype]


def heads_of(rank: int, tp_size: int, all_heads: int) -> list[int]:
    """The model's KV heads that a rank holds, by counting shares out one by one."""
    if tp_size <= all_heads:
        return [head for head in range(all_heads) if head // (all_heads // tp_size) == rank]
    return [head for head in range(all_heads) if rank // (tp_size // all_heads) == head]


def ranks_of(layout: KVLayout, all_heads: int, tp_size: int) -> list[KVLayout]:
    """The layouts of all ranks of an engine."""
    held = 1 if layout.latent else len(heads_of(0, tp_size, all_heads))
    return [
        replace(layout, num_kv_heads=held, tp_size=tp_size, tp_rank=rank, model_kv_heads=all_heads)
        for rank in range(tp_size)
    ]


def writers_of(target: KVLayout, source: KVLayout) -> tuple[int, ...]:
    """The ranks of prefill that write to a rank of decode; `source` is the layout of any of them."""
    return tuple(move.source_rank for move in moves_to(target, source))


class Model:
    """The values of one sequence, [slab, token, model's head, byte], and memory of ranks that holds them."""

    def __init__(self, layout: KVLayout, all_heads: int, num_tokens: int, seed: int = 5) -> None:
        self.rng = np.random.default_rng(seed)
        slabs, width = layout.num_layers * (1 if layout.latent else 2), layout.head_dim * HEAD_SIZES[layout.dtype]
        self.values = self.rng.integers(0, 256, (slabs, num_tokens, all_heads, width), dtype=np.uint8)
        self.width = width

    def places(self, side: Side) -> list[tuple[tuple[int, int, int], int]]:
        """((slab, token, model's head), first byte) of all that the rank holds of the sequence."""
        layout = side.layout
        slabs, tokens, all_heads, _ = self.values.shape
        mine = [0] if layout.latent else heads_of(layout.tp_rank, layout.tp_size, all_heads)
        return [
            (
                (slab, token, head),
                place_of(layout, side.blocks[token // layout.block_tokens], slab, token % layout.block_tokens, place),
            )
            for slab, token, (place, head) in product(range(slabs), range(tokens), enumerate(mine))
        ]

    def memory(self, side: Side, holds: bool) -> np.ndarray:
        """A rank's cache of noise, with the values where they belong if it `holds` them."""
        memory = self.rng.integers(0, 256, side.layout.total_bytes, dtype=np.uint8)
        for where, at in self.places(side) if holds else ():
            memory[at : at + self.width] = self.values[where]
        return memory


def apply(plan: TransferPlan, source: np.ndarray, target: np.ndarray, touched: np.ndarray) -> None:
    """Copy by plan; `touched` counts how often each byte of the target was written."""
    for span in plan.spans:
        there = slice(span.dst_offset, span.dst_offset + span.num_bytes)
        piece = source[span.src_offset : span.src_offset + span.num_bytes]
        assert len(piece) == span.num_bytes, "a span reads beyond the source"
        target[there] = piece
        touched[there] += 1
