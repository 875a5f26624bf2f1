"""The GPU's kernels against the definition and against torch's own operations (`make paged`)."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.heads import PlainHeads
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.rope import RopeTable, frequencies_of
from router.contract.kv import KVLayout, KVOrder
from tests.support import attention
from tests.support.attention import LAYER, NUM_DIMS, agrees, chunks_of, noisy_cache
from tests.support.tiny_models import TINY_QWEN3

pytestmark = pytest.mark.needs("triton")

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
noise = partial(attention.noise, device=DEVICE)


@pytest.mark.parametrize(
    ("order", "block_tokens", "num_kv_heads", "group"),
    [(KVOrder.BLOCK_FIRST, 16, 2, 3), (KVOrder.LAYER_FIRST, 8, 1, 20), (KVOrder.HEAD_MAJOR, 32, 3, 1)],
)
def test_rows_that_decode_see_their_own_blocks_up_to_themselves(order, block_tokens, num_kv_heads, group):
    from engine_shim.engine.reference.paged import PagedAttention

    cache = noisy_cache(block_tokens, num_kv_heads, order, 512, DEVICE)
    spans = [(0, 1), (63, 64), (70, 75), (64, 65), (150, 151)]
    chunks = chunks_of(spans, list(range(cache.layout.num_blocks))[::-1], cache.layout)
    planner = PagedAttention()
    batch = make_batch(chunks, block_tokens, DEVICE)
    queries = noise(len(batch.token_ids), num_kv_heads * group, NUM_DIMS, seed=2)
    for _ in range(2):  # the tables are there already when they are asked for again
        out = planner(batch, cache, group).attend(LAYER, queries)
        assert all(agrees(out, chunks, cache, queries))


@pytest.mark.parametrize("normed", [True, False])
def test_heads_enter_as_by_torch_s_own_operations_and_padding_nowhere(normed):
    from engine_shim.engine.reference.paged import FusedHeads

    config = TINY_QWEN3
    layout = KVLayout(2, config.num_kv_heads, config.head_dim, 16, 4, "float32", KVOrder.BLOCK_FIRST)
    caches = [KVCache(layout, DEVICE) for _ in range(2)]
    rope = RopeTable(frequencies_of(config), 64, torch.float32).to(DEVICE)
    batch = make_batch([Chunk([0] * 11, 20, [3, 1], 0)], 16, DEVICE)
    heads = noise(11, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
    norms = (noise(config.head_dim, seed=3), noise(config.head_dim, seed=4)) if normed else None
    expected, found = (
        kind(config, rope, batch, cache).enter(1, heads, norms)
        for kind, cache in zip((PlainHeads, FusedHeads), caches, strict=True)
    )
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(caches[1].tensor, caches[0].tensor, atol=1e-5)
    held = caches[1].tensor.clone()
    batch.positions.fill_(-1)
    FusedHeads(config, rope, batch, caches[1]).enter(1, 1 + heads, norms)
    assert torch.equal(caches[1].tensor, held)


def test_a_row_of_padding_attends_to_nothing_and_gives_zeros():
    from engine_shim.engine.reference.paged import PagedRows

    cache = KVCache(KVLayout(1, 2, 8, 16, 2, "float32", KVOrder.BLOCK_FIRST), DEVICE)
    cache.tensor.fill_(torch.nan)
    tables, slots = (
        torch.zeros((1, 2), dtype=torch.int32, device=DEVICE),
        torch.zeros(1, dtype=torch.int64, device=DEVICE),
    )
    (mixed,) = PagedRows(tables, slots, slots - 1).attend(cache, 0, noise(1, 4, 8))
    assert torch.equal(mixed, torch.zeros_like(mixed))


def test_the_gate_is_silu_times_up():
    from engine_shim.engine.reference.paged import fused_gate

    x = noise(3, 2 * 2050)
    assert torch.allclose(fused_gate(x), silu(x[:, :2050]) * x[:, 2050:], atol=1e-6)


def test_rows_are_normed_each_by_itself():
    from engine_shim.engine.reference.paged import fused_norm

    x, weight = 3 * noise(4, 300), noise(300, seed=2)
    assert torch.allclose(fused_norm(x, weight, 1e-6), rms_norm(x, (300,), weight, 1e-6), atol=1e-5)


def test_splits_fill_the_gpu_and_no_more():
    from engine_shim.engine.reference.paged import MOST_SPLITS, num_splits

    assert [num_splits(programs) for programs in (1, 8, 64, 512, 4096)] == [MOST_SPLITS, 64, 8, 1, 1]


def test_graphs_serve_every_number_of_rows():
    from engine_shim.engine.reference.graphs import graph_sizes

    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
