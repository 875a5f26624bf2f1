"""Invariant numerics on the real model: no batch, chunking, block size, memory order or thread count changes a bit."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.checkpoint import locate
from engine_shim.engine.reference.gguf import GGUFCheckpoint
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.settings import Numerics
from engine_shim.engine.reference.weights import load_weights
from router.contract.kv import KVLayout, KVOrder

pytestmark = [pytest.mark.needs("model"), pytest.mark.timeout(300)]

CPU = torch.device("cpu")
DRAW = random.Random(7)
PROMPTS = [[DRAW.randrange(49152) for _ in range(length)] for length in (1, 17, 64, 65, 131)]
TOTAL_TOKENS = 512


@pytest.fixture(scope="module")
def model() -> Model:
    checkpoint, kernels = GGUFCheckpoint(locate("smollm2-135m")), kernels_of(Numerics.INVARIANT)
    return Model(checkpoint.config, load_weights(checkpoint, torch.float32, CPU, kernels), 512, kernels)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@torch.inference_mode()
def computed(model: Model, block_tokens: int, seed: int, order: KVOrder) -> list[torch.Tensor]:
    """Final hidden states and KV of all prompts, computed in random chunks and company."""
    layout = KVLayout(30, 3, 64, block_tokens, TOTAL_TOKENS // block_tokens, "float32", order)
    cache, draw = KVCache(layout, CPU), random.Random(seed)
    blocks = draw.sample(range(layout.num_blocks), layout.num_blocks)
    tables = [[blocks.pop() for _ in range(layout.blocks_for(len(prompt)))] for prompt in PROMPTS]
    hidden: list[list[torch.Tensor]] = [[] for _ in PROMPTS]
    done = [0] * len(PROMPTS)
    while live := [i for i, prompt in enumerate(PROMPTS) if done[i] < len(prompt)]:
        picked = draw.sample(live, draw.randint(1, len(live)))
        counts = [min(draw.choice((1, 7, 64, 100, 300)), len(PROMPTS[i]) - done[i]) for i in picked]
        chunks = [
            Chunk(PROMPTS[i][done[i] : done[i] + n], done[i], tables[i], n) for i, n in zip(picked, counts, strict=True)
        ]
        out = model.forward(make_batch(chunks, block_tokens, CPU), cache)
        for index, count, rows in zip(picked, counts, out.split(counts), strict=True):
            hidden[index].append(rows)
            done[index] += count
    kept = torch.stack(cache.layers)
    kv = [
        torch.stack([kept[:, table[t // block_tokens], t % block_tokens] for t in range(len(prompt))])
        for prompt, table in zip(PROMPTS, tables, strict=True)
    ]
    return [*(torch.cat(rows) for rows in hidden), *kv]


def test_nothing_around_a_token_changes_its_bits(model, threads):
    torch.set_num_threads(2)
    expected = computed(model, 16, 0, KVOrder.BLOCK_FIRST)
    for num_threads, block_tokens, order in (
        (2, 8, KVOrder.BLOCK_FIRST),
        (1, 16, KVOrder.LAYER_FIRST),
        (2, 32, KVOrder.LAYER_FIRST),
        (1, 64, KVOrder.BLOCK_FIRST),
    ):
        torch.set_num_threads(num_threads)
        again = computed(model, block_tokens, block_tokens, order)
        assert [torch.equal(one, other) for one, other in zip(again, expected, strict=True)] == [True] * len(expected)
