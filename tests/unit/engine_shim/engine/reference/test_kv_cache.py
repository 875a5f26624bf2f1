from __future__ import annotations

import ctypes

import pytest
import torch

from engine_shim.engine.reference.kv_cache import KVCache
from router.contract.kv import KVLayout, KVOrder

CPU = torch.device("cpu")


def layout(order: KVOrder = KVOrder.BLOCK_FIRST, **changes) -> KVLayout:
    sizes = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 4, "block_tokens": 8, "num_blocks": 5, "dtype": "float32"}
    return KVLayout(**sizes | changes, order=order)


@pytest.mark.parametrize("order", list(KVOrder))
def test_rows_lie_where_the_contract_says(order):
    cache = KVCache(layout(order), CPU)
    kv = torch.arange(2 * 2 * 2 * 4, dtype=torch.float32).view(2, 2, 2, 4) + 1
    cache.write(1, (torch.tensor([3, 0]), torch.tensor([7, 2])), kv)
    for row, (block, token) in enumerate([(3, 7), (0, 2)]):
        for part in range(2):
            places = {
                KVOrder.BLOCK_FIRST: [(((block * 3 + 1) * 2 + part) * 8 + token) * 2 + head for head in range(2)],
                KVOrder.LAYER_FIRST: [(((1 * 2 + part) * 5 + block) * 8 + token) * 2 + head for head in range(2)],
                KVOrder.HEAD_MAJOR: [(((block * 2 + head) * 3 + 1) * 2 + part) * 8 + token for head in range(2)],
            }
            for head, place in enumerate(places[order]):
                stored = (ctypes.c_float * 4).from_address(cache.region.base + place * 16)
                assert list(stored) == kv[row, part, head].tolist()
            kept = (cache.keys, cache.values)[part][1][block]
            assert torch.equal(kept.view(8, 2, 4)[token], kv[row, part])
    assert cache.tensor.count_nonzero() == kv.numel()


@pytest.mark.parametrize("order", list(KVOrder))
def test_cleared_blocks_hold_zeros_and_no_others_do(order):
    cache = KVCache(layout(order), CPU)
    cache.tensor.fill_(torch.nan)
    cache.clear([4, 1])
    for block in range(5):
        held = torch.stack([layer[block] for layer in cache.layers])
        assert torch.equal(held, torch.zeros_like(held)) == (block in (1, 4))


def test_the_region_is_the_whole_tensor():
    cache = KVCache(layout(dtype="bfloat16"), CPU)
    assert cache.region.num_bytes == cache.tensor.numel() * 2 == cache.layout.total_bytes
    assert (cache.region.device, cache.region.device_id) == ("cpu", 0)
    assert cache.tensor.is_contiguous()


def test_memory_is_taken_only_when_it_is_written():
    def resident_pages() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1])

    before = resident_pages()
    cache = KVCache(layout(num_blocks=200_000), CPU)
    assert cache.layout.total_bytes > 300_000_000
    assert (resident_pages() - before) * 4096 < 50_000_000
    assert float(cache.tensor[-1].sum()) == 0.0
