"""Staged copies move exactly what direct ones move, for every pair of layouts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.core.copy_costs import Path
from engine_shim.core.staging import GRANULE_LEAST_BYTES, stage
from engine_shim.core.transfer_plan import Side, Span, TransferPlan, plan_transfer
from engine_shim.fabric.port import CopyState
from router.contract.errors import TransferFailed
from router.contract.kv import KVLayout, KVOrder
from tests.support.staged_pairs import SLOT, loopback_pair


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Side, Side, int, int]:
    num_tokens = draw(st.integers(1, 200))
    head_dim = draw(st.sampled_from((32, 64, 96)))
    sides = []
    for _ in range(2):
        block_tokens = draw(st.sampled_from((1, 2, 4, 8, 16)))
        needed = -(-num_tokens // block_tokens)
        num_blocks = needed + draw(st.integers(0, 5))
        shape = KVLayout(2, 1, head_dim, block_tokens, num_blocks, "bfloat16", draw(st.sampled_from(KVOrder)))
        order = draw(st.permutations(range(num_blocks))) if draw(st.booleans()) else list(range(needed))
        sides.append(Side(shape, tuple(order[:needed])))
    return sides[0], sides[1], draw(st.integers(0, num_tokens - 1)), num_tokens


def by_hand(plan: TransferPlan, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    wanted = target.copy()
    for span in plan.spans:
        wanted[span.dst_offset : span.dst_offset + span.num_bytes] = source[
            span.src_offset : span.src_offset + span.num_bytes
        ]
    return wanted


@settings(max_examples=80, deadline=None)
@given(transfers(), st.sampled_from((Path.STAGED, Path.MAPPED)))
def test_a_copy_by_index_equals_the_copy_by_hand_and_its_tag_comes_after_it(
    case: tuple[Side, Side, int, int], path: Path
) -> None:
    src, dst, first_token, num_tokens = case
    plan = plan_transfer(src, dst, first_token, num_tokens)
    p, d = loopback_pair(src.layout.total_bytes, dst.layout.total_bytes, path=path)
    rng = np.random.default_rng(3)
    p.memory[:] = rng.integers(0, 256, len(p.memory), dtype=np.uint8)
    d.memory[:] = rng.integers(0, 256, len(d.memory), dtype=np.uint8)
    wanted = by_hand(plan, p.memory, d.memory)
    key = p.write(d, plan)
    for _ in range(500):
        if p.states[key] is not CopyState.BUSY:
            break
        p.turn()
        if path is Path.STAGED:
            assert p.states[key] is CopyState.BUSY or d.notices == [b"tag"], "done before the target had it"
        d.turn()
        if d.notices:
            assert (d.memory == wanted).all(), "the tag came before its bytes"
    d.turn()
    assert p.states[key] is CopyState.DONE
    assert (d.memory == wanted).all()
    assert d.notices == [b"tag"]
    assert p.free_slots == d.free_slots == (4, 4)


@given(transfers(), st.integers(1, 5))
def test_granules_cover_the_plan_once_and_chunks_fit_their_slots(case: tuple[Side, Side, int, int], split: int) -> None:
    src, dst, first_token, num_tokens = case
    plan = plan_transfer(src, dst, first_token, num_tokens)
    staged = stage(plan, SLOT)
    assert staged is not None
    assert staged.granule_bytes >= GRANULE_LEAST_BYTES
    assert staged.num_bytes == plan.num_bytes
    assert len(set(staged.columns[1].tolist())) == staged.num_rows
    assert staged.lies_within(src.layout.total_bytes, dst.layout.total_bytes)
    chunks = staged.chunks(SLOT, split)
    assert all(chunk.num_rows * (staged.granule_bytes + 4) <= SLOT for chunk in chunks)
    assert len(chunks) >= min(split, staged.num_rows)
    rows = [row for chunk in chunks for row in range(chunk.first, chunk.first + chunk.num_rows)]
    assert rows == list(range(staged.num_rows))
    assert max(chunk.num_rows for chunk in chunks) - min(chunk.num_rows for chunk in chunks) <= 1


@pytest.mark.parametrize("span", [(3 * 1024, 0), (0, 7 * 1024)])
def test_granules_outside_either_cache_are_seen(span: tuple[int, int]) -> None:
    staged = stage(TransferPlan((Span(0, 1024, 1024), Span(*span, 2048))), SLOT)
    assert staged is not None
    assert not staged.lies_within(4 * 1024, 8 * 1024)
    inside = stage(TransferPlan((Span(0, 1024, 1024), Span(2 * 1024, 6 * 1024, 2048))), SLOT)
    assert inside is not None
    assert inside.lies_within(4 * 1024, 8 * 1024)


@pytest.mark.parametrize("span", [(-1024, 0), (0, -1024)])
def test_a_span_before_its_region_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(TransferFailed):
        stage(TransferPlan((Span(0, 1024, 1024), Span(*span, 2048))), SLOT)


def test_what_is_too_fine_or_nothing_is_not_staged() -> None:
    assert stage(TransferPlan((Span(0, 32, 64), Span(64, 128, 64))), SLOT) is None
    assert stage(TransferPlan(()), SLOT) is None
    assert stage(TransferPlan((Span(0, 1 << 50, 1024), Span(1024, 0, 1024))), SLOT) is None, "beyond an int32 index"


def test_a_plan_of_blocks_that_touch_on_both_sides_in_any_order_has_no_needless_span() -> None:
    shape = KVLayout(2, 1, 32, 16, 8, "bfloat16", KVOrder.LAYER_FIRST)
    whole = Side(shape, tuple(range(8)))
    assert len(plan_transfer(whole, whole, 0, 128).spans) == 1
    odd = KVLayout(2, 1, 32, 16, 8, "bfloat16")
    # The tails of four slabs of the first block; the last of them touches the blocks that follow.
    assert len(plan_transfer(Side(odd, (0, 1, 2)), Side(odd, (4, 5, 6)), 8, 48).spans) == 4
