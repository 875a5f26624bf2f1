"""Staged copies move exactly what direct ones move, for every pair of layouts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.core.staging import GRANULE_LEAST_BYTES, stage
from engine_shim.core.transfer_plan import Side, Span, TransferPlan, plan_transfer
from engine_shim.fabric.port import CopyState
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


@settings(max_examples=60, deadline=None)
@given(transfers())
def test_a_staged_copy_equals_the_copy_by_hand_and_its_tag_comes_after_it(case: tuple[Side, Side, int, int]) -> None:
    src, dst, first_token, num_tokens = case
    plan = plan_transfer(src, dst, first_token, num_tokens)
    p, d = loopback_pair(src.layout.total_bytes, dst.layout.total_bytes)
    rng = np.random.default_rng(3)
    p.memory[:] = rng.integers(0, 256, len(p.memory), dtype=np.uint8)
    d.memory[:] = rng.integers(0, 256, len(d.memory), dtype=np.uint8)
    wanted = by_hand(plan, p.memory, d.memory)
    key = p.write(d, plan)
    for _ in range(500):
        if p.states[key] is not CopyState.BUSY:
            break
        p.turn()
        assert p.states[key] is CopyState.BUSY or d.notices == [b"tag"], "done before the target had it"
        d.turn()
        if d.notices:
            assert (d.memory == wanted).all(), "the tag came before its bytes"
    assert p.states[key] is CopyState.DONE
    assert (d.memory == wanted).all()
    assert d.notices == [b"tag"]
    assert p.free_slots == d.free_slots == (4, 4)


@given(transfers())
def test_granules_cover_the_plan_once_and_chunks_fit_their_slots(case: tuple[Side, Side, int, int]) -> None:
    src, dst, first_token, num_tokens = case
    plan = plan_transfer(src, dst, first_token, num_tokens)
    staged = stage(plan, SLOT)
    assert staged is not None
    assert staged.granule_bytes >= GRANULE_LEAST_BYTES
    assert len(staged.source) * staged.granule_bytes == plan.num_bytes
    assert len(set(staged.target.tolist())) == len(staged.target)
    chunks = list(staged.chunks(SLOT))
    assert all(len(chunk.source) * (staged.granule_bytes + 4) <= SLOT for chunk in chunks)
    assert np.concatenate([chunk.source for chunk in chunks]).tolist() == staged.source.tolist()


def test_what_is_too_fine_or_nothing_is_not_staged() -> None:
    assert stage(TransferPlan((Span(0, 32, 64), Span(64, 128, 64))), SLOT) is None
    assert stage(TransferPlan(()), SLOT) is None


def test_a_plan_of_blocks_that_touch_on_both_sides_in_any_order_has_no_needless_span() -> None:
    shape = KVLayout(2, 1, 32, 16, 8, "bfloat16", KVOrder.LAYER_FIRST)
    whole = Side(shape, tuple(range(8)))
    assert len(plan_transfer(whole, whole, 0, 128).spans) == 1
    odd = KVLayout(2, 1, 32, 16, 8, "bfloat16")
    # The tails of four slabs of the first block; the last of them touches the blocks that follow.
    assert len(plan_transfer(Side(odd, (0, 1, 2)), Side(odd, (4, 5, 6)), 8, 48).spans) == 4
