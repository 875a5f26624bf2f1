"""Scatter and barrier of a group of ranks, over loopback."""

from __future__ import annotations

import ctypes

import pytest

from engine_shim.fabric.group import FabricGroup, Slice
from engine_shim.fabric.loopback import LoopbackFabric, LoopbackNetwork
from router.contract.kv import Region

SIZE = 32


class Ranks:
    """Three ranks of SIZE bytes each, all known to each other."""

    def __init__(self) -> None:
        network = LoopbackNetwork()
        self.memory = [ctypes.create_string_buffer(bytes([65 + rank]) * SIZE, SIZE) for rank in range(3)]
        self.groups = []
        for rank, memory in enumerate(self.memory):
            region = Region(ctypes.addressof(memory), SIZE, "cpu")
            self.groups.append(FabricGroup(LoopbackFabric(f"rank-{rank}", region, network), region, rank))
        cards = {group.rank: group.card() for group in self.groups}
        for group in self.groups:
            group.connect(cards)

    def poll(self, *ranks: int) -> list[list[tuple[int, bytes]]]:
        return [self.groups[rank].poll() for rank in ranks]


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_every_rank_gets_its_slice_and_then_the_tag(ranks: Ranks) -> None:
    ranks.groups[0].scatter([Slice(1, 0, 4, 3, b"one"), Slice(2, 8, 0, 0, b"two")])
    assert ranks.groups[0].busy == {1}
    assert ranks.poll(1, 2) == [[(0, b"one")], [(0, b"two")]]
    assert ranks.memory[1].raw[:8] == b"BBBBAAAB"
    assert ranks.memory[2].raw == b"C" * SIZE
    ranks.poll(0)
    assert not ranks.groups[0].busy


def test_a_barrier_is_passed_when_all_have_arrived(ranks: Ranks) -> None:
    first, second, third = ranks.groups
    number = first.arrive()
    assert first.missing(number) == {1, 2}
    second.arrive()
    assert ranks.poll(0, 1) == [[], []]
    assert (first.missing(number), second.missing(number)) == ({2}, {2})
    third.arrive()
    ranks.poll(0, 1, 2)
    assert [group.missing(number) for group in ranks.groups] == [frozenset()] * 3
    # The next one is another one, and who comes early has come.
    second.arrive()
    again = first.arrive()
    ranks.poll(0)
    assert first.missing(again) == {2}


def test_tags_are_not_taken_for_arrivals(ranks: Ranks) -> None:
    ranks.groups[1].scatter([Slice(0, 0, 0, 0, b"x" * 16)])
    ranks.groups[1].arrive()
    assert ranks.poll(0) == [[(1, b"x" * 16)]]
    assert ranks.groups[0].missing(1) == {2}


def test_a_rank_that_dies_while_a_slice_is_on_its_way_is_known(ranks: Ranks) -> None:
    ranks.groups[0].scatter([Slice(1, 0, 0, 4, b"one")])
    ranks.groups[1].close()
    ranks.poll(0)
    assert ranks.groups[0].gone == {1}
    assert not ranks.groups[0].busy


def test_a_rank_without_a_card_cannot_be_reached(ranks: Ranks) -> None:
    ranks.groups[0].scatter([Slice(3, 0, 0, 4, b"one"), Slice(2, 0, 0, 4, b"two")])
    assert ranks.groups[0].gone == {3}
    assert ranks.poll(2) == [[(0, b"two")]]


def test_a_dead_rank_is_known_and_the_others_are_served(ranks: Ranks) -> None:
    ranks.groups[1].close()
    ranks.groups[0].scatter([Slice(1, 0, 0, 4, b"one"), Slice(2, 0, 0, 4, b"two")])
    assert ranks.groups[0].gone == {1}
    assert ranks.poll(2) == [[(0, b"two")]]
    number = ranks.groups[0].arrive()
    ranks.groups[2].arrive()
    ranks.poll(0)
    assert ranks.groups[0].missing(number) == {1}
