"""Bits of the whole forward pass; its values are compared with transformers in tests/real/engine."""

from __future__ import annotations

import random

import pytest
import torch

from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.settings import Numerics
from router.contract.kv import KVLayout, KVOrder
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN3, prompt_of, tiny_weights

CPU = torch.device("cpu")
PROMPTS = [prompt_of(length, seed=length) for length in (1, 15, 64, 65, 150)]


@torch.inference_mode()
def computed(config, numerics, block_tokens, draw, order=KVOrder.BLOCK_FIRST):
    """Logits and KV of every token, computed in random chunks, company and blocks."""
    layout = KVLayout(
        config.num_layers, config.num_kv_heads, config.head_dim, block_tokens, 768 // block_tokens, "float32", order
    )
    cache = KVCache(layout, CPU)
    model = Model(config, tiny_weights(config, numerics), 256, kernels_of(numerics))
    blocks = list(range(layout.num_blocks))
    draw.shuffle(blocks)
    tables = [[blocks.pop() for _ in range(layout.blocks_for(len(prompt)))] for prompt in PROMPTS]
    logits = [torch.empty(len(prompt), config.vocab_size) for prompt in PROMPTS]
    done = [0] * len(PROMPTS)
    while live := [i for i, prompt in enumerate(PROMPTS) if done[i] < len(prompt)]:
        picked = draw.sample(live, draw.randint(1, len(live)))
        counts = [min(draw.choice((1, 2, 5, 33, 200)), len(PROMPTS[i]) - done[i]) for i in picked]
        chunks = [
            Chunk(PROMPTS[i][done[i] : done[i] + n], done[i], tables[i], n) for i, n in zip(picked, counts, strict=True)
        ]
        hidden = model.forward(make_batch(chunks, block_tokens, CPU), cache)
        for index, count, part in zip(picked, counts, hidden.split(counts), strict=True):
            logits[index][done[index] : done[index] + count] = model.logits(part)
            done[index] += count
    kv = [
        torch.stack([layer[table[t // block_tokens], t % block_tokens] for layer in cache.layers])
        for prompt, table in zip(PROMPTS, tables, strict=True)
        for t in range(len(prompt))
    ]
    return [*logits, *kv]


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize(("block_tokens", "order"), [(8, "block_first"), (16, "layer_first"), (32, "block_first")])
def test_no_chunking_company_or_block_size_changes_a_bit_in_invariant_numerics(config, block_tokens, order):
    expected = computed(config, Numerics.INVARIANT, 16, random.Random(0))
    for seed in range(2):
        again = computed(config, Numerics.INVARIANT, block_tokens, random.Random(seed), KVOrder(order))
        assert all(torch.equal(one, other) for one, other in zip(again, expected, strict=True))


def test_fast_numerics_differ_in_the_last_bits_at_most():
    invariant = computed(TINY_LLAMA, Numerics.INVARIANT, 16, random.Random(0))
    fast = computed(TINY_LLAMA, Numerics.FAST, 16, random.Random(1))
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(fast, invariant, strict=True))


@torch.inference_mode()
def test_unwanted_rows_leave_their_kv_and_do_not_come_out():
    model = Model(TINY_LLAMA, tiny_weights(), 256, kernels_of(Numerics.INVARIANT))
    outs = []
    for num_wanted in (5, 2):
        cache = KVCache(KVLayout(2, 2, 8, 16, 4, "float32"), CPU)
        batch = make_batch([Chunk(prompt_of(5), 0, [2], num_wanted), Chunk([4], 0, [1], 1)], 16, CPU)
        outs.append((model.forward(batch, cache), cache.tensor))
    assert torch.equal(outs[1][0], outs[0][0][3:])
    assert torch.equal(outs[1][1], outs[0][1])
