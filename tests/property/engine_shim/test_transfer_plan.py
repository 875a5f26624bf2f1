"""Plans tile exactly: a numpy copy by plan equals a copy token by token, for every pair of layouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_shim.core.transfer_plan import Side, plan_transfer
from router.contract.errors import LayoutMismatch, TransferFailed
from router.contract.kv import KVLayout, KVOrder


def layout(block_tokens: int, num_blocks: int, order: KVOrder, **other: object) -> KVLayout:
    facts = {"num_layers": 2, "num_kv_heads": 1, "head_dim": 2, "dtype": "float16"} | other
    return KVLayout(block_tokens=block_tokens, num_blocks=num_blocks, order=order, **facts)  # type: ignore[arg-type]


def token_view(cache: np.ndarray, shape: KVLayout) -> np.ndarray:
    """[block, token, layer, 2, bytes]: the bytes of each token, whatever the order in memory."""
    width = shape.slab_token_bytes
    if shape.order is KVOrder.BLOCK_FIRST:
        grid = cache.reshape(shape.num_blocks, shape.num_layers, 2, shape.block_tokens, width)
        return grid.transpose(0, 3, 1, 2, 4)
    grid = cache.reshape(shape.num_layers, 2, shape.num_blocks, shape.block_tokens, width)
    return grid.transpose(2, 3, 0, 1, 4)


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Side, Side, int, int]:
    num_tokens = draw(st.integers(1, 40))
    sides = []
    for _ in range(2):
        block_tokens = draw(st.sampled_from((1, 2, 3, 4, 8, 16)))
        needed = -(-num_tokens // block_tokens)
        shape = layout(block_tokens, needed + draw(st.integers(0, 5)), draw(st.sampled_from(KVOrder)))
        order = draw(st.permutations(range(shape.num_blocks))) if draw(st.booleans()) else list(range(needed))
        sides.append(Side(shape, tuple(order[:needed])))
    return sides[0], sides[1], draw(st.integers(0, num_tokens)), num_tokens


@given(transfers())
def test_copy_by_plan_moves_exactly_the_wanted_tokens(case: tuple[Side, Side, int, int]) -> None:
    src, dst, first_token, num_tokens = case
    rng = np.random.default_rng(7)
    source = rng.integers(0, 256, src.layout.total_bytes, dtype=np.uint8)
    target = rng.integers(0, 256, dst.layout.total_bytes, dtype=np.uint8)
    before = target.copy()
    plan = plan_transfer(src, dst, first_token, num_tokens)
    touched = np.zeros(dst.layout.total_bytes, dtype=np.int64)
    for span in plan.spans:
        piece = source[span.src_offset : span.src_offset + span.num_bytes]
        target[span.dst_offset : span.dst_offset + span.num_bytes] = piece
        touched[span.dst_offset : span.dst_offset + span.num_bytes] += 1
    assert touched.max(initial=0) <= 1, "spans overlap at the destination"
    seen, old = token_view(target, dst.layout), token_view(before, dst.layout)
    want = token_view(source, src.layout)
    own_tail = num_tokens + -num_tokens % dst.layout.block_tokens
    for token in range(own_tail):
        d_block, d_place = dst.blocks[token // dst.layout.block_tokens], token % dst.layout.block_tokens
        if first_token <= token < num_tokens:
            s_block, s_place = src.blocks[token // src.layout.block_tokens], token % src.layout.block_tokens
            assert (seen[d_block, d_place] == want[s_block, s_place]).all()
        elif token < first_token:
            assert (seen[d_block, d_place] == old[d_block, d_place]).all()
    strangers = [block for block in range(dst.layout.num_blocks) if block not in dst.blocks]
    assert (seen[strangers] == old[strangers]).all(), "a block of another sequence was written"


def test_contiguous_blocks_of_equal_size_become_one_span() -> None:
    shape = layout(16, 64, KVOrder.BLOCK_FIRST)
    src, dst = Side(shape, tuple(range(3, 13))), Side(shape, tuple(range(40, 50)))
    plan = plan_transfer(src, dst, 0, 150)
    assert [(s.src_offset, s.dst_offset, s.num_bytes) for s in plan.spans] == [
        (3 * shape.block_bytes, 40 * shape.block_bytes, 10 * shape.block_bytes)
    ]


def test_contiguous_runs_of_unequal_size_need_one_span_per_slab_when_layer_first() -> None:
    src = Side(layout(16, 64, KVOrder.LAYER_FIRST), tuple(range(4)))
    dst = Side(layout(8, 64, KVOrder.LAYER_FIRST), tuple(range(10, 18)))
    assert len(plan_transfer(src, dst, 0, 64).spans) == 2 * src.layout.num_layers


def test_a_wanted_range_of_nothing_is_an_empty_plan() -> None:
    side = Side(layout(4, 4, KVOrder.BLOCK_FIRST), (0, 1))
    assert plan_transfer(side, side, 7, 7).spans == ()


@pytest.mark.parametrize("change", [{"num_layers": 3}, {"num_kv_heads": 2}, {"head_dim": 4}, {"dtype": "float32"}])
def test_caches_of_other_models_are_refused(change: dict[str, object]) -> None:
    ours = Side(layout(4, 4, KVOrder.BLOCK_FIRST), (0,))
    theirs = Side(layout(4, 4, KVOrder.BLOCK_FIRST, **change), (0,))
    with pytest.raises(LayoutMismatch):
        plan_transfer(ours, theirs, 0, 3)


@pytest.mark.parametrize("blocks", [(0,), (0, 4), (-1, 0), (0, 99)])
def test_a_table_that_is_too_short_or_points_outside_is_refused(blocks: tuple[int, ...]) -> None:
    shape = layout(4, 4, KVOrder.BLOCK_FIRST)
    good = Side(shape, (0, 1))
    for src, dst in ((good, Side(shape, blocks)), (Side(shape, blocks), good)):
        with pytest.raises(TransferFailed):
            plan_transfer(src, dst, 0, 8)
