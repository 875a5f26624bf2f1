"""Both planners against the definition, in float64."""

from __future__ import annotations

import math
import random

import pytest
import torch

from engine_shim.engine.reference.attention_fast import FastPlan
from engine_shim.engine.reference.attention_invariant import InvariantPlan
from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.kv_cache import KVCache
from router.contract.kv import KVLayout, KVOrder

CPU = torch.device("cpu")
PLANNERS = pytest.mark.parametrize("planner", [FastPlan, InvariantPlan], ids=["fast", "invariant"])


def random_cache(block_tokens: int, num_kv_heads: int, order: KVOrder) -> KVCache:
    layout = KVLayout(2, num_kv_heads, 8, block_tokens, 64 * 16 // block_tokens, "float32", order)
    cache = KVCache(layout, CPU)
    cache.tensor.copy_(torch.randn(cache.tensor.shape, generator=torch.Generator().manual_seed(3)))
    return cache


def naive(chunk: Chunk, cache: KVCache, queries: torch.Tensor) -> torch.Tensor:
    """softmax(q K^T / sqrt(d)) V, row by row and head by head."""
    bt = cache.layout.block_tokens
    rows = []
    for row, query in enumerate(queries.double()):
        tokens = range(chunk.first_position + row + 1)
        kv = torch.stack([cache.layers[1][chunk.table[t // bt], t % bt] for t in tokens]).double()
        group = len(query) // cache.layout.num_kv_heads
        for head, vector in enumerate(query):
            scores = kv[:, 0, head // group] @ vector / math.sqrt(8)
            rows.append(scores.softmax(0) @ kv[:, 1, head // group])
    return torch.stack(rows).view(len(queries), -1)


@PLANNERS
@pytest.mark.parametrize("order", list(KVOrder))
@pytest.mark.parametrize(("block_tokens", "num_kv_heads", "group"), [(16, 2, 3), (8, 1, 4), (32, 3, 1), (16, 1, 20)])
def test_every_row_sees_its_own_sequence_up_to_itself(planner, order, block_tokens, num_kv_heads, group):
    cache = random_cache(block_tokens, num_kv_heads, order)
    blocks = list(range(cache.layout.num_blocks))
    random.Random(5).shuffle(blocks)
    spans = [(0, 1), (9, 10), (63, 64), (64, 65), (150, 151), (0, 70), (65, 69), (70, 170)]
    chunks = []
    for first, end in spans:
        table = [blocks.pop() for _ in range(cache.layout.blocks_for(end))]
        chunks.append(Chunk([0] * (end - first), first, table, 0))
    batch = make_batch(chunks, block_tokens, CPU)
    queries = torch.randn(len(batch.token_ids), num_kv_heads * group, 8, generator=torch.Generator().manual_seed(4))
    out = planner(batch, cache, group).attend(1, queries)
    begin = 0
    for chunk in chunks:
        rows = slice(begin, begin + chunk.num_rows)
        assert torch.allclose(out[rows].double(), naive(chunk, cache, queries[rows]), atol=2e-6)
        begin += chunk.num_rows


@PLANNERS
def test_what_lies_behind_a_sequences_end_is_not_seen(planner):
    cache = random_cache(16, 2, KVOrder.BLOCK_FIRST)
    chunks = [Chunk([0], 4, [3], 0), Chunk([0], 20, [5, 6], 0)]
    batch = make_batch(chunks, 16, CPU)
    queries = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(4))
    before = planner(batch, cache, 2).attend(0, queries)
    cache.layers[0][3, 5:] = 1e9
    cache.layers[0][6, 5:] = 1e9
    assert torch.equal(planner(batch, cache, 2).attend(0, queries), before)
