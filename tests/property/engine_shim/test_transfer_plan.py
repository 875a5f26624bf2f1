"""Plans tile exactly: a copy by plan brings what an oracle finds element by element, for every pair of layouts."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.core.layerwise import layers_pay
from engine_shim.core.transfer_plan import Side, plan_transfer
from router.contract.errors import LayoutMismatch, TransferFailed
from router.contract.kv import KVLayout, KVOrder
from tests.support.kv_oracle import Model, apply, heads_of, place_of, ranks_of, writers_of


def layout(block_tokens: int, num_blocks: int, order: KVOrder, **other: object) -> KVLayout:
    facts = {"num_layers": NUM_LAYERS, "num_kv_heads": 1, "head_dim": 2, "dtype": "float16"} | other
    return KVLayout(block_tokens=block_tokens, num_blocks=num_blocks, order=order, **facts)  # type: ignore[arg-type]


@st.composite
def transfers(draw: st.DrawFn) -> tuple[list[Side], list[Side], int, int]:
    """All ranks of prefill, all ranks of decode, and the wanted tokens."""
    num_tokens = draw(st.integers(1, 24))
    latent = draw(st.sampled_from((False, False, False, True)))
    all_heads = 1 if latent else draw(st.sampled_from((1, 2, 3, 4, 8)))
    sizes = [size for size in (1, 2, 3, 4, 8) if latent or max(size, all_heads) % min(size, all_heads) == 0]
    dtype = draw(st.sampled_from(("float16", "float8_e4m3", "float8_e5m2")))
    shapes = st.tuples(st.sampled_from((1, 2, 3, 4, 8, 16)), st.sampled_from(KVOrder))
    one, other = draw(shapes), draw(shapes)
    engines = []
    for block_tokens, order in (one, draw(st.sampled_from((one, other)))):
        needed = -(-num_tokens // block_tokens)
        num_blocks = needed + draw(st.integers(0, 3))
        shape = layout(block_tokens, num_blocks, order, latent=latent, dtype=dtype)
        blocks = draw(st.permutations(range(num_blocks))) if draw(st.booleans()) else list(range(needed))
        ranks = ranks_of(shape, all_heads, draw(st.sampled_from(sizes)))
        engines.append([Side(rank, tuple(blocks[:needed])) for rank in ranks])
    return engines[0], engines[1], draw(st.just(0) | st.integers(0, num_tokens)), num_tokens


NUM_LAYERS = 3
IN_LAYERS = (None,), (range(1), range(1, 3)), (range(2), range(2, 3)), (range(1), range(1, 2), range(2, 3))
"""Ways to bring all of them."""


@settings(max_examples=160, deadline=None)
@given(transfers(), st.sampled_from(IN_LAYERS))
def test_the_plans_of_all_ranks_and_layers_bring_each_wanted_byte_once_from_where_it_lies(
    case: tuple[list[Side], list[Side], int, int], in_layers: tuple[range | None, ...]
) -> None:
    sources, targets, first_token, num_tokens = case
    model = Model(sources[0].layout, sources[0].layout.all_kv_heads, num_tokens)
    held = [model.memory(source, holds=True) for source in sources]
    for dst in targets:
        target = model.memory(dst, holds=False)
        before, touched = target.copy(), np.zeros(len(target), dtype=np.int64)
        writers = []
        for src, memory in zip(sources, held, strict=True):
            plans = [plan_transfer(src, dst, first_token, num_tokens, layers) for layers in in_layers]
            for plan in plans:
                apply(plan, memory, target, touched)
            writers += [src.layout.tp_rank] if all(plan.spans for plan in plans) else []
        if first_token < num_tokens:
            assert writers == sorted(writers_of(dst.layout, sources[0].layout))
        assert touched.max(initial=0) <= 1, "a byte was written twice"
        for (slab, token, head), at in model.places(dst):
            there = slice(at, at + model.width)
            if token >= first_token:
                assert (target[there] == model.values[slab, token, head]).all()
                assert touched[there].all()
            else:
                assert not touched[there].any(), "a token that nobody wants was written"
        strangers = [block for block in range(dst.layout.num_blocks) if block not in dst.blocks]
        own = {at // model.width for at in all_places(dst, strangers)}
        assert not touched.reshape(-1, model.width)[sorted(own)].any(), "a block of another sequence was written"
        assert (target[touched == 0] == before[touched == 0]).all()


def all_places(side: Side, blocks: list[int]) -> list[int]:
    shape = side.layout
    slabs = shape.num_layers * (1 if shape.latent else 2)
    return [
        place_of(shape, block, slab, token, head)
        for block, slab, token, head in product(
            blocks, range(slabs), range(shape.block_tokens), range(shape.num_kv_heads)
        )
    ]


@pytest.mark.parametrize("all_heads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("tp_size", [1, 2, 3, 4, 8, 16])
def test_ranks_hold_equal_shares_or_there_is_no_such_layout(all_heads: int, tp_size: int) -> None:
    whole = layout(4, 4, KVOrder.BLOCK_FIRST, num_kv_heads=all_heads)
    if max(all_heads, tp_size) % min(all_heads, tp_size):
        with pytest.raises(ValueError, match="cannot be shared equally"):
            replace(whole, num_kv_heads=1, tp_size=tp_size, model_kv_heads=all_heads)
        return
    for rank in ranks_of(whole, all_heads, tp_size):
        mine = list(range(rank.first_head, rank.first_head + rank.num_kv_heads))
        assert mine == heads_of(rank.tp_rank, tp_size, all_heads)
    with pytest.raises(ValueError, match="KV heads"):
        replace(whole, num_kv_heads=all_heads + 1, tp_size=tp_size, model_kv_heads=all_heads)
    with pytest.raises(ValueError, match="no tensor-parallel rank"):
        replace(whole, tp_rank=1)


def test_what_several_ranks_hold_is_sent_by_each_in_turn() -> None:
    prefill = ranks_of(layout(4, 4, KVOrder.BLOCK_FIRST), 2, 8)
    decode = ranks_of(layout(4, 4, KVOrder.BLOCK_FIRST), 2, 8)
    assert [writers_of(rank, prefill[0]) for rank in decode] == [(rank,) for rank in (0, 1, 2, 3, 4, 5, 6, 7)]
    latent = ranks_of(layout(4, 4, KVOrder.BLOCK_FIRST, latent=True), 1, 4)
    assert [writers_of(rank, latent[0]) for rank in latent] == [(0,), (1,), (2,), (3,)]
    few = ranks_of(layout(4, 4, KVOrder.BLOCK_FIRST), 8, 2)
    many = ranks_of(layout(4, 4, KVOrder.BLOCK_FIRST), 8, 4)
    assert [writers_of(rank, many[0]) for rank in few] == [(0, 1), (2, 3)]
    assert [writers_of(rank, few[0]) for rank in many] == [(0,), (0,), (1,), (1,)]


def test_head_major_ranks_exchange_one_span_a_block_and_one_for_neighbouring_blocks_of_equal_shares() -> None:
    shape = layout(16, 64, KVOrder.HEAD_MAJOR)
    two, four = ranks_of(shape, 8, 2), ranks_of(shape, 8, 4)
    blocks = tuple(range(3, 13))
    assert len(plan_transfer(Side(two[0], blocks), Side(four[1], blocks), 0, 150).spans) == 10
    assert len(plan_transfer(Side(two[0], blocks), Side(two[0], blocks), 0, 150).spans) == 1
    assert plan_transfer(Side(two[0], blocks), Side(four[2], blocks), 0, 150).spans == ()
    token_major = replace(four[1], order=KVOrder.BLOCK_FIRST)
    assert len(plan_transfer(Side(two[0], blocks), Side(token_major, blocks), 0, 150).spans) == 150 * 4 * NUM_LAYERS


def test_a_plan_of_too_many_pieces_is_refused_and_says_what_to_do() -> None:
    big = layout(16, 20_000, KVOrder.HEAD_MAJOR, num_layers=80, num_kv_heads=8)
    blocks = tuple(range(20_000))
    with pytest.raises(LayoutMismatch, match="same KV order"):
        plan_transfer(Side(big, blocks), Side(replace(big, order=KVOrder.BLOCK_FIRST), blocks), 0, 320_000)


def test_pages_of_unequal_shares_are_refused() -> None:
    paged = layout(4, 4, KVOrder.LAYER_FIRST, has_pages=True)
    two, one = ranks_of(paged, 4, 2), ranks_of(paged, 4, 1)
    with pytest.raises(LayoutMismatch, match="tensor-parallel size"):
        plan_transfer(Side(two[0], (0,)), Side(one[0], (0,)), 0, 4)
    assert plan_transfer(Side(two[1], (0,)), Side(two[1], (3,)), 0, 4).num_bytes == 4 * two[0].token_bytes


@pytest.mark.parametrize("order", [KVOrder.LAYER_FIRST, KVOrder.BLOCK_FIRST])
def test_pages_go_in_layers_too(order: KVOrder) -> None:
    paged = layout(4, 8, order, has_pages=True)
    src, dst = Side(paged, (3, 1, 5)), Side(paged, (0, 7, 2))
    touched = np.zeros(paged.total_bytes, dtype=np.int64)
    target, memory = np.zeros_like(touched), np.arange(paged.total_bytes)
    for layers in (range(2), range(2, 3)):
        apply(plan_transfer(src, dst, 0, 11, layers), memory, target, touched)
    whole = np.zeros_like(target)
    apply(plan_transfer(src, dst, 0, 11), memory, whole, np.zeros_like(touched))
    assert (target == whole).all() and touched.max() == 1 and touched.sum() == 3 * paged.block_bytes


def test_contiguous_blocks_of_equal_size_become_one_span() -> None:
    shape = layout(16, 64, KVOrder.BLOCK_FIRST)
    src, dst = Side(shape, tuple(range(3, 13))), Side(shape, tuple(range(40, 50)))
    plan = plan_transfer(src, dst, 0, 150)
    assert [(s.src_offset, s.dst_offset, s.num_bytes) for s in plan.spans] == [
        (3 * shape.block_bytes, 40 * shape.block_bytes, 10 * shape.block_bytes)
    ]


def test_layers_pay_where_they_are_no_more_pieces_or_a_piece_is_worth_a_descriptor() -> None:
    small, large = layout(16, 64, KVOrder.BLOCK_FIRST), layout(16, 64, KVOrder.BLOCK_FIRST, head_dim=4096)
    by_head = replace(small, order=KVOrder.HEAD_MAJOR)
    assert not any(layers_pay(shape, gathers=False, on_host=True) for shape in (small, by_head))
    assert layers_pay(replace(small, order=KVOrder.LAYER_FIRST), gathers=False, on_host=False)
    assert layers_pay(small, gathers=True, on_host=False)
    assert [layers_pay(large, gathers=False, on_host=on_host) for on_host in (True, False)] == [True, False]
    blocks, table = [3, 9, 1, 7], {}
    for order in (KVOrder.LAYER_FIRST, KVOrder.BLOCK_FIRST):
        side = Side(replace(small, order=order), tuple(blocks))
        parts = [plan_transfer(side, side, 0, 64, layers) for layers in (range(1), range(1, 3))]
        table[order] = len(plan_transfer(side, side, 0, 64).spans), sum(len(plan.spans) for plan in parts)
    assert table == {KVOrder.LAYER_FIRST: (24, 24), KVOrder.BLOCK_FIRST: (4, 8)}


@pytest.mark.parametrize(("order", "pieces"), [(KVOrder.BLOCK_FIRST, 4), (KVOrder.HEAD_MAJOR, 4 * 8)])
def test_layers_of_whole_blocks_are_one_run_of_each_the_last_block_too(order: KVOrder, pieces: int) -> None:
    side = Side(layout(16, 64, order, num_kv_heads=8), (3, 9, 1, 7))
    spans = plan_transfer(side, side, 0, 50, range(1, 3)).spans
    assert len(spans) == pieces and {span.num_bytes for span in spans} == {sum(s.num_bytes for s in spans) // pieces}


def test_contiguous_runs_of_unequal_size_need_one_span_per_slab_when_layer_first() -> None:
    src = Side(layout(16, 64, KVOrder.LAYER_FIRST), tuple(range(4)))
    dst = Side(layout(8, 64, KVOrder.LAYER_FIRST), tuple(range(10, 18)))
    assert len(plan_transfer(src, dst, 0, 64).spans) == 2 * src.layout.num_layers


def test_a_wanted_range_of_nothing_is_an_empty_plan() -> None:
    side = Side(layout(4, 4, KVOrder.BLOCK_FIRST), (0, 1))
    assert plan_transfer(side, side, 7, 7).spans == ()


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 2},
        {"num_kv_heads": 2},
        {"head_dim": 4},
        {"dtype": "float32"},
        {"dtype": "float8_e4m3"},
        {"latent": True},
    ],
)
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
