import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_shim.core.transfer_plan import Side, plan_transfer
from engine_shim.driver.pattern import count_wrong_bytes, write_pattern
from engine_shim.fabric import device_memory
from router.contract.errors import BadRequest
from router.contract.kv import KVLayout, KVOrder, Region

LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=4, block_tokens=4, num_blocks=8, dtype="float16")
LAYOUTS = [
    LAYOUT,
    replace(LAYOUT, order=KVOrder.LAYER_FIRST),
    replace(LAYOUT, block_tokens=2, num_blocks=16),
    replace(LAYOUT, block_tokens=8, order=KVOrder.LAYER_FIRST),
    replace(LAYOUT, block_tokens=8, order=KVOrder.HEAD_MAJOR),
]


def memory(layout: KVLayout) -> tuple[ctypes.Array[ctypes.c_char], Region]:
    buffer = ctypes.create_string_buffer(layout.total_bytes)
    return buffer, Region(ctypes.addressof(buffer), layout.total_bytes, "cpu")


@pytest.mark.parametrize("src", LAYOUTS)
@pytest.mark.parametrize("dst", LAYOUTS)
@pytest.mark.parametrize("num_tokens", [1, 4, 7])
def test_what_a_plan_moves_is_the_pattern_in_any_layout(src: KVLayout, dst: KVLayout, num_tokens: int) -> None:
    (source, src_region), (sink, dst_region) = memory(src), memory(dst)
    src_blocks, dst_blocks = (5, 1, 7, 2)[: src.blocks_for(num_tokens)], (3, 6, 0, 4)[: dst.blocks_for(num_tokens)]
    write_pattern(src_region, src, src_blocks, num_tokens, seed=9)
    assert count_wrong_bytes(src_region, src, src_blocks, num_tokens, seed=9) == 0
    for span in plan_transfer(Side(src, src_blocks), Side(dst, dst_blocks), 0, num_tokens).spans:
        ctypes.memmove(dst_region.base + span.dst_offset, src_region.base + span.src_offset, span.num_bytes)
    assert count_wrong_bytes(dst_region, dst, dst_blocks, num_tokens, seed=9) == 0
    assert source.raw != sink.raw or src == dst


def test_each_wrong_byte_counts() -> None:
    buffer, region = memory(LAYOUT)
    write_pattern(region, LAYOUT, (2, 3), 6, seed=1)
    offset = 2 * LAYOUT.block_bytes
    buffer[offset] = bytes([buffer.raw[offset] ^ 1])
    buffer[offset + 5] = bytes([buffer.raw[offset + 5] ^ 255])
    assert count_wrong_bytes(region, LAYOUT, (2, 3), 6, seed=1) == 2


def test_another_seed_is_another_pattern() -> None:
    _, region = memory(LAYOUT)
    write_pattern(region, LAYOUT, (0,), 4, seed=1)
    assert count_wrong_bytes(region, LAYOUT, (0,), 4, seed=2) > LAYOUT.block_bytes // 2


def test_blocks_beside_are_left_alone() -> None:
    buffer, region = memory(LAYOUT)
    write_pattern(region, LAYOUT, (4,), 3, seed=1)
    start, end = 4 * LAYOUT.block_bytes, 5 * LAYOUT.block_bytes
    assert not any(buffer.raw[:start])
    assert not any(buffer.raw[end : LAYOUT.total_bytes])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_of_a_gpu_is_the_same_to_it(layout: KVLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, region = memory(layout)
    # Where a GPU's memory is seen from is all that is not real here.
    seen = torch.frombuffer(buffer, dtype=torch.uint8)[: layout.total_bytes]
    monkeypatch.setattr(device_memory, "bytes_at", lambda *_: seen)
    on_gpu = replace(region, device="cuda")
    write_pattern(on_gpu, layout, (1, 3), 3, seed=5)
    assert count_wrong_bytes(region, layout, (1, 3), 3, seed=5) == 0
    buffer[layout.strides.block] = 255
    assert count_wrong_bytes(on_gpu, layout, (1, 3), 3, seed=5) == 1


def test_memory_that_is_neither_is_refused() -> None:
    with pytest.raises(BadRequest, match="hbm memory"):
        write_pattern(Region(4096, LAYOUT.total_bytes, "hbm"), LAYOUT, (0,), 1, seed=1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_it_leaves_behind_are_finite_numbers(dtype: type) -> None:
    buffer, region = memory(LAYOUT)
    write_pattern(region, LAYOUT, tuple(range(8)), 32, seed=3)
    values = np.frombuffer(buffer.raw[: LAYOUT.total_bytes], dtype=dtype)
    assert np.isfinite(values).all()
    assert (np.abs(values) < 2).all()
