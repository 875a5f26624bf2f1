from __future__ import annotations

import torch

from engine_shim.engine.reference.attention_fast import FastPlan
from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.kv_cache import KVCache
from router.contract.kv import KVLayout


def test_decoding_sequences_of_similar_length_share_a_call():
    cache = KVCache(KVLayout(1, 1, 8, 16, 64, "float32"), torch.device("cpu"))
    lengths = [1, 10, 20, 100, 140, 400]
    chunks = [Chunk([0], length - 1, list(range(-(-length // 16))), 0) for length in lengths]
    chunks += [Chunk([0] * 5, 3, [0], 0), Chunk([0] * 5, 3, [0], 0)]
    plan = FastPlan(make_batch(chunks, 16, torch.device("cpu")), cache, 1)
    assert plan._rows == [3, 2, 1, 5, 5]
