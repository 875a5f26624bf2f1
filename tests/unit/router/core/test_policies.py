from collections import Counter

import pytest

from router.core.policies import POLICIES, least_loaded, power_of_two, random, round_robin, scramble
from tests.support.instances import decode, fleet

MEMBERS = fleet(*(decode(f"d{n}") for n in range(4))).members


def weigh(member) -> int:
    return {"d0": 9, "d1": 5, "d2": 1, "d3": 5}[member.instance.instance_id]


def even(member) -> int:
    return 0


@pytest.mark.parametrize("policy", POLICIES.values())
def test_a_choice_is_a_function_of_the_turn(policy):
    for turn in range(20):
        assert policy(MEMBERS, weigh, turn) is policy(MEMBERS, weigh, turn)
        assert policy(MEMBERS[:1], weigh, turn) is MEMBERS[0]


@pytest.mark.parametrize("policy", POLICIES.values())
def test_equals_are_used_about_equally(policy):
    counts = Counter(policy(MEMBERS, even, turn).instance.instance_id for turn in range(4000))
    assert len(counts) == 4
    assert min(counts.values()) > 800


def test_power_of_two_never_takes_the_heaviest_and_mostly_the_lightest():
    counts = Counter(power_of_two(MEMBERS, weigh, turn).instance.instance_id for turn in range(4000))
    assert counts["d0"] == 0
    assert counts["d2"] > 1700


def test_power_of_two_compares_two_different_ones():
    pair = MEMBERS[:2]
    assert {power_of_two(pair, weigh, turn).instance.instance_id for turn in range(64)} == {"d1"}


def test_least_loaded_takes_the_lightest_and_equals_in_turn():
    assert least_loaded(MEMBERS, weigh, 3).instance.instance_id == "d2"
    assert [least_loaded(MEMBERS, even, turn).instance.instance_id for turn in range(4)] == ["d0", "d1", "d2", "d3"]


def test_round_robin_ignores_weight():
    assert [round_robin(MEMBERS, weigh, turn).instance.instance_id for turn in range(5)] == [
        "d0",
        "d1",
        "d2",
        "d3",
        "d0",
    ]


def test_random_ignores_weight():
    counts = Counter(random(MEMBERS, weigh, turn).instance.instance_id for turn in range(4000))
    assert min(counts.values()) > 800


def test_scramble_spreads_neighbours():
    assert len({scramble(turn) % 1024 for turn in range(512)}) > 350
