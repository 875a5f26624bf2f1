"""Regions: what lies where, and what is refused before anything is allocated."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import pairwise

import pytest

from engine_shim.experts.nvlink.region import ALIGN_BYTES, check_room, kernel_columns, plan_region, route_bytes
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from router.contract.errors import BadSettings

WIDE = ExpertShape(num_ranks=4, num_experts=256, top_k=8, hidden_size=7168, max_tokens=128, expert_align=128)


def test_an_exact_region_is_counts_flags_rows_and_answers() -> None:
    plan = plan_region(WIDE, flights=1)
    (part,) = plan.parts
    rows = 4 * 128 * 8 + 64 * 127
    assert (part.refused, part.counts) == (0, 256)
    assert part.arrived - part.counts == 8448  # 4 rows of 257 words of 8 bytes, to the next 256
    assert part.ready - part.arrived == 256  # 4 flags 32 bytes apart
    assert part.scale - part.x == rows * 7168
    assert part.y - part.scale == rows * 56 * 4
    assert part.stage_x - part.y == rows * 14336
    assert part.partial == part.stage_x == plan.num_bytes  # nothing is staged


def test_a_dedup_region_has_a_place_for_every_token_of_every_rank() -> None:
    part = plan_region(replace(WIDE, numerics=ExpertNumerics.DEDUP), flights=1).parts[0]
    assert part.stage_scale - part.stage_x == 512 * 7168
    assert part.stage_route - part.stage_scale == 512 * 224
    assert part.partial - part.stage_route == 512 * 96


@pytest.mark.parametrize(("top_k", "num_bytes"), [(1, 16), (4, 48), (5, 64), (8, 96)])
def test_a_routing_is_three_words_for_each_choice_in_whole_vectors(top_k: int, num_bytes: int) -> None:
    assert route_bytes(replace(WIDE, top_k=top_k)) == num_bytes


@pytest.mark.parametrize("numerics", ExpertNumerics)
def test_nothing_of_two_flights_is_shared_but_the_first_word(numerics: ExpertNumerics) -> None:
    plan = plan_region(replace(WIDE, numerics=numerics), flights=3)
    assert {part.refused for part in plan.parts} == {0}
    begins = [begin for part in plan.parts for begin in astuple(part)[1:]]
    assert all(begin % ALIGN_BYTES == 0 for begin in begins)
    assert all(a <= b for a, b in pairwise([ALIGN_BYTES, *begins, plan.num_bytes]))
    one = plan_region(replace(WIDE, numerics=numerics), flights=1).num_bytes
    assert plan.num_bytes - ALIGN_BYTES == 3 * (one - ALIGN_BYTES)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_ranks": 128}, "at most 64"),
        ({"num_experts": 1024}, "at most 512"),
        ({"top_k": 33}, "at most 32"),
        ({"dispatch_format": RowFormat.BF16, "hidden_size": 40}, "multiple of 32 bytes"),
        ({"hidden_size": 65536}, "dispatch in bf16"),
        ({"dispatch_format": RowFormat.F32}, "one format for both"),
        ({"combine_format": RowFormat.F32}, "one format for both"),
    ],
)
def test_what_the_kernels_cannot_serve_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        plan_region(replace(WIDE, **changes))  # type: ignore[arg-type]


def test_rows_of_float32_take_their_own_bytes() -> None:
    plain = replace(WIDE, dispatch_format=RowFormat.BF16)
    whole = replace(WIDE, dispatch_format=RowFormat.F32, combine_format=RowFormat.F32)
    assert kernel_columns(whole) == 2 * kernel_columns(plain) == 2 * WIDE.hidden_size
    (narrow, _), (wide, _) = plan_region(plain).parts, plan_region(whole).parts
    assert wide.y - wide.x == 2 * (narrow.y - narrow.x)
    # Eight float32 are as many bytes as the kernels move at once; of bfloat16 they would be half of it.
    plan_region(replace(whole, hidden_size=24))


def test_a_refusal_says_how_many_bytes_were_wanted() -> None:
    wanted = plan_region(WIDE).num_bytes
    check_room(wanted, wanted)
    with pytest.raises(BadSettings, match=rf"want {wanted} bytes \(0\.49 GiB\).*{wanted - 1} are free"):
        check_room(wanted, wanted - 1)
