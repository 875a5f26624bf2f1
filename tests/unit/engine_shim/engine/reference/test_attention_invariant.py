from __future__ import annotations

import random

import pytest
import torch

from engine_shim.engine.reference import attention_invariant
from engine_shim.engine.reference.attention_invariant import InvariantPlan
from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.kv_cache import KVCache
from router.contract.kv import KVLayout

CPU = torch.device("cpu")
LENGTHS = (1, 50, 64, 65, 200)
KV = [torch.randn(length, 2, 2, 8, generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
QUERIES = [torch.randn(length, 6, 8, generator=torch.Generator().manual_seed(-length)) for length in LENGTHS]


def attended(block_tokens: int, draw: random.Random) -> list[torch.Tensor]:
    """Every row's attention, computed in random chunks and company, from randomly placed blocks."""
    cache = KVCache(KVLayout(1, 2, 8, block_tokens, 1024 // block_tokens, "float32"), CPU)
    cache.tensor.fill_(7.0)
    blocks = list(range(cache.layout.num_blocks))
    draw.shuffle(blocks)
    tables = [[blocks.pop() for _ in range(cache.layout.blocks_for(length))] for length in LENGTHS]
    for kv, table in zip(KV, tables, strict=True):
        places = make_batch([Chunk([0] * len(kv), 0, table, 0)], block_tokens, CPU).places
        cache.write(0, places, kv)
    out = [torch.empty(length, 48) for length in LENGTHS]
    done = [0] * len(LENGTHS)
    while live := [index for index, length in enumerate(LENGTHS) if done[index] < length]:
        picked = draw.sample(live, draw.randint(1, len(live)))
        counts = [min(draw.choice((1, 2, 5, 6, 63, 200)), LENGTHS[index] - done[index]) for index in picked]
        chunks = [Chunk([0] * n, done[i], tables[i], 0) for i, n in zip(picked, counts, strict=True)]
        queries = torch.cat([QUERIES[i][done[i] : done[i] + n] for i, n in zip(picked, counts, strict=True)])
        rows = InvariantPlan(make_batch(chunks, block_tokens, CPU), cache, 3).attend(0, queries)
        for index, count, part in zip(picked, counts, rows.split(counts), strict=True):
            out[index][done[index] : done[index] + count] = part
            done[index] += count
    return out


@pytest.mark.parametrize("block_tokens", [8, 16, 32, 64])
def test_no_chunking_company_or_block_size_changes_a_bit(block_tokens, monkeypatch):
    expected = attended(16, random.Random(0))
    monkeypatch.setattr(attention_invariant, "MAX_PAIRS", block_tokens)
    for seed in range(3):
        again = attended(block_tokens, random.Random(seed))
        assert all(torch.equal(one, other) for one, other in zip(again, expected, strict=True))
