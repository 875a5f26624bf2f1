"""Attention as it is defined, in float64, and sequences to hold a planner against it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from engine_shim.engine.reference.batch import Chunk
from engine_shim.engine.reference.kv_cache import KVCache
from router.contract.kv import KVLayout, KVOrder

NUM_DIMS = 8
"""Of a head."""
LAYER = 1
"""Of two, the one that is attended to."""


def noise(*sizes: int, device: torch.device, seed: int = 1) -> torch.Tensor:
    """Normal random numbers, the same for the same seed on every device."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(device)


def noisy_cache(block_tokens: int, num_kv_heads: int, order: KVOrder, num_tokens: int, device: torch.device) -> KVCache:
    """A cache of two layers in float32 with room for `num_tokens`, full of noise."""
    layout = KVLayout(2, num_kv_heads, NUM_DIMS, block_tokens, num_tokens // block_tokens, "float32", order)
    cache = KVCache(layout, device)
    cache.tensor.copy_(noise(*cache.tensor.shape, device=device, seed=3))
    return cache


def chunks_of(spans: list[tuple[int, int]], blocks: list[int], layout: KVLayout) -> list[Chunk]:
    """A sequence for each span of positions, in blocks taken from the end of `blocks`."""
    return [
        Chunk([0] * (end - first), first, [blocks.pop() for _ in range(layout.blocks_for(end))], 0)
        for first, end in spans
    ]


def defined(chunk: Chunk, cache: KVCache, queries: torch.Tensor) -> torch.Tensor:
    """softmax(q K^T / sqrt(d)) V, row by row and head by head."""
    bt = cache.layout.block_tokens
    rows = []
    for row, query in enumerate(queries.double()):
        tokens = range(chunk.first_position + row + 1)
        kv = torch.stack([cache.layers[LAYER][chunk.table[t // bt], t % bt] for t in tokens]).double()
        group = len(query) // cache.layout.num_kv_heads
        for head, vector in enumerate(query):
            scores = kv[:, 0, head // group] @ vector / math.sqrt(NUM_DIMS)
            rows.append(scores.softmax(0) @ kv[:, 1, head // group])
    return torch.stack(rows).view(len(queries), -1)


def agrees(out: torch.Tensor, chunks: list[Chunk], cache: KVCache, queries: torch.Tensor) -> Iterator[bool]:
    """Of each chunk, whether its rows of `out` are as defined."""
    begin = 0
    for chunk in chunks:
        rows = slice(begin, begin + chunk.num_rows)
        yield torch.allclose(out[rows].double(), defined(chunk, cache, queries[rows]), atol=2e-6)
        begin += chunk.num_rows
