from __future__ import annotations

import pytest

from engine_shim.engine.ranks.placement import Wish, place_ranks
from router.contract.errors import BadSettings


def everywhere(_gpu: int, _other: int) -> bool:
    return True


def in_pairs(gpu: int, other: int) -> bool:
    return gpu // 2 == other // 2


def to_the_first_alone(gpu: int, other: int) -> bool:
    return 0 in (gpu, other)


@pytest.mark.parametrize(
    ("wish", "num_visible", "gpus"),
    [
        (Wish(4), 4, (0, 1, 2, 3)),
        (Wish(4), 8, (0, 1, 2, 3)),
        (Wish(4), 1, (0, 0, 0, 0)),
        (Wish(3), 2, (0, 1, 0)),
        (Wish(2, first=2), 4, (2, 3)),
        (Wish(2, first=3), 4, (3, 3)),
        (Wish(4, num_gpus=2), 4, (0, 1, 0, 1)),
        (Wish(4, num_gpus=1), 4, (0, 0, 0, 0)),
        (Wish(2, first=1, num_gpus=2, addressed=True), 4, (1, 2)),
    ],
)
def test_ranks_go_round_over_the_gpus(wish: Wish, num_visible: int, gpus: tuple[int, ...]) -> None:
    assert place_ranks(wish, num_visible, everywhere) == gpus


def test_gpus_that_nobody_asked_for_are_used_where_they_reach_what_they_must() -> None:
    assert place_ranks(Wish(4), 4, in_pairs) == (0, 1, 0, 1)
    assert place_ranks(Wish(2, first=1), 4, in_pairs) == (1, 1)
    assert place_ranks(Wish(3), 3, to_the_first_alone) == (0, 1, 2)
    assert place_ranks(Wish(3, addressed=True), 3, to_the_first_alone) == (0, 1, 0)


def test_gpus_that_were_asked_for_and_cannot_address_each_other() -> None:
    with pytest.raises(BadSettings, match="GPU 2 and GPU 0 cannot"):
        place_ranks(Wish(4, num_gpus=4), 4, in_pairs)
    assert place_ranks(Wish(3, num_gpus=3), 3, to_the_first_alone) == (0, 1, 2)
    with pytest.raises(BadSettings, match="GPU 2 and GPU 1 cannot"):
        place_ranks(Wish(3, num_gpus=3, addressed=True), 3, to_the_first_alone)
