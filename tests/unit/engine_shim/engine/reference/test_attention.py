"""Both planners against the definition, in float64."""

from __future__ import annotations

import random

import pytest
import torch

from engine_shim.engine.reference.attention_fast import FastPlan
from engine_shim.engine.reference.attention_invariant import InvariantPlan
from engine_shim.engine.reference.batch import Chunk, make_batch
from router.contract.kv import KVOrder
from tests.support.attention import LAYER, NUM_DIMS, agrees, chunks_of, noise, noisy_cache

CPU = torch.device("cpu")
PLANNERS = pytest.mark.parametrize("planner", [FastPlan, InvariantPlan], ids=["fast", "invariant"])


@PLANNERS
@pytest.mark.parametrize("order", list(KVOrder))
@pytest.mark.parametrize(("block_tokens", "num_kv_heads", "group"), [(16, 2, 3), (8, 1, 4), (32, 3, 1), (16, 1, 20)])
def test_every_row_sees_its_own_sequence_up_to_itself(planner, order, block_tokens, num_kv_heads, group):
    cache = noisy_cache(block_tokens, num_kv_heads, order, 1024, CPU)
    blocks = list(range(cache.layout.num_blocks))
    random.Random(5).shuffle(blocks)
    spans = [(0, 1), (9, 10), (63, 64), (64, 65), (150, 151), (0, 70), (65, 69), (70, 170)]
    chunks = chunks_of(spans, blocks, cache.layout)
    batch = make_batch(chunks, block_tokens, CPU)
    queries = noise(len(batch.token_ids), num_kv_heads * group, NUM_DIMS, device=CPU, seed=4)
    out = planner(batch, cache, group).attend(LAYER, queries)
    assert all(agrees(out, chunks, cache, queries))


@PLANNERS
def test_what_lies_behind_a_sequences_end_is_not_seen(planner):
    cache = noisy_cache(16, 2, KVOrder.BLOCK_FIRST, 1024, CPU)
    chunks = [Chunk([0], 4, [3], 0), Chunk([0], 20, [5, 6], 0)]
    batch = make_batch(chunks, 16, CPU)
    queries = noise(2, 4, NUM_DIMS, device=CPU, seed=4)
    before = planner(batch, cache, 2).attend(0, queries)
    cache.layers[0][3, 5:] = 1e9
    cache.layers[0][6, 5:] = 1e9
    assert torch.equal(planner(batch, cache, 2).attend(0, queries), before)
