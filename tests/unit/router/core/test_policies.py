from collections import Counter

import pytest

from router.core.policies import least_loaded, power_of_two, random, round_robin, scramble
from router.core.roster import Roster
from tests.support.instances import intake, roster

POLICIES = [power_of_two, least_loaded, round_robin, random]
ASKED = intake()
MEMBERS = roster(4)


def weigh(member) -> int:
    return {"d00": 9, "d01": 5, "d02": 1, "d03": 5}[member.instance.instance_id]


def even(member) -> int:
    return 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_choice_is_a_function_of_the_turn(policy):
    for turn in range(20):
        assert policy(MEMBERS, weigh, ASKED, turn) is policy(MEMBERS, weigh, ASKED, turn)
        assert policy(Roster(MEMBERS[:1]), weigh, ASKED, turn) is MEMBERS[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_equals_are_used_about_equally(policy):
    counts = Counter(policy(MEMBERS, even, ASKED, turn).instance.instance_id for turn in range(4000))
    assert len(counts) == 4
    assert min(counts.values()) > 800


def test_power_of_two_never_takes_the_heaviest_and_mostly_the_lightest():
    counts = Counter(power_of_two(MEMBERS, weigh, ASKED, turn).instance.instance_id for turn in range(4000))
    assert counts["d00"] == 0
    assert counts["d02"] > 1700


def test_power_of_two_compares_two_different_ones():
    pair = Roster(MEMBERS[:2])
    assert {power_of_two(pair, weigh, ASKED, turn).instance.instance_id for turn in range(64)} == {"d01"}


def test_least_loaded_takes_the_lightest_and_equals_in_turn():
    assert least_loaded(MEMBERS, weigh, ASKED, 3).instance.instance_id == "d02"
    assert [least_loaded(MEMBERS, even, ASKED, turn).instance.instance_id for turn in range(4)] == [
        "d00",
        "d01",
        "d02",
        "d03",
    ]


def test_round_robin_ignores_weight():
    assert [round_robin(MEMBERS, weigh, ASKED, turn).instance.instance_id for turn in range(5)] == [
        "d00",
        "d01",
        "d02",
        "d03",
        "d00",
    ]


def test_random_ignores_weight():
    counts = Counter(random(MEMBERS, weigh, ASKED, turn).instance.instance_id for turn in range(4000))
    assert min(counts.values()) > 800


def test_scramble_spreads_neighbours():
    assert len({scramble(turn) % 1024 for turn in range(512)}) > 350
