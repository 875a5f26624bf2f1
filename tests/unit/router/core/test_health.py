from functools import partial

import pytest

from router.contract.ids import InstanceId
from router.core.breaker import BreakerRules
from router.core.health import MAX_REST_S, Health, keys_of
from router.core.intake import Endpoint, Intake
from router.core.placement import Desk, Placement, Refusal, Rules
from tests.support.instances import decode, fleet, prefill

INTAKE = Intake(Endpoint.CHAT, b'{"model":"m"}', "m", False, "")
FOUR = (prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
NOBODY: frozenset[InstanceId] = frozenset()


class Scene:
    """A fleet, and where its requests go."""

    def __init__(self, *seen, **rules):
        self.health = Health(BreakerRules(**{"failures": 1, "open_s": 2.0} | rules))
        self.fleet = fleet(*seen)
        self.health.see({m.instance.instance_id: m.instance.epoch for m in self.fleet.members})
        self.turn = 0

    def place(self, excluded=NOBODY) -> Placement | Refusal:
        self.turn += 1
        choose = partial(Desk(Rules()).choose, self.fleet, INTAKE, self.turn)
        return self.health.place(choose, self.fleet.members, excluded)

    def chosen(self) -> set[str]:
        """Everyone who is chosen in 64 turns."""
        names = set()
        for _ in range(64):
            placement = self.place()
            assert isinstance(placement, Placement)
            names |= {placement.prefill.instance.instance_id, placement.decode.instance.instance_id}
        return names


def test_with_nothing_amiss_there_is_no_alert():
    scene = Scene(*FOUR)
    assert not scene.health.alert and scene.chosen() == {"p0", "p1", "d0", "d1"}


def test_an_open_instance_is_left_out_until_a_canary_has_proved_it():
    scene = Scene(*FOUR)
    scene.health.fail("d0", 1.0, 1.0)
    assert scene.health.alert and scene.chosen() == {"p0", "p1", "d1"}
    scene.health.tick(3.0)
    assert "d0" in scene.chosen()
    canary = object()
    scene.health.take_canary(("p0", "d0", ("p0", "d0")), canary)
    assert scene.chosen() == {"p0", "p1", "d1"}, "one canary is enough"
    scene.health.begin_answer(("p0", "d0", ("p0", "d0")), 3.0, 3.1)
    assert not scene.health.alert and "d0" in scene.chosen()


def test_a_canary_that_proves_nothing_is_followed_by_another():
    scene = Scene(*FOUR)
    scene.health.fail("d0", 1.0, 1.0)
    scene.health.tick(3.0)
    canary = object()
    scene.health.take_canary(("d0",), canary)
    scene.health.release(canary)
    assert "d0" in scene.chosen() and scene.health.state_of("d0") == "half_open"


def test_when_all_are_open_the_first_that_opened_is_tried():
    scene = Scene(*FOUR)
    for now, name in ((1.0, "d1"), (1.1, "d0"), (1.2, "p0"), (1.3, "p1")):
        scene.health.fail(name, now, now)
    assert scene.chosen() == {"d1", "p0"}
    scene.health.fail("d1", 1.4, 1.5)
    assert scene.chosen() == {"d0", "p0"}, "one that failed again goes to the back"
    refused = scene.place(frozenset({InstanceId("d0"), InstanceId("d1")}))
    assert isinstance(refused, Refusal), "who is excluded by an earlier attempt is not tried"


def test_one_that_says_it_is_not_ready_is_never_tried():
    scene = Scene(prefill("p0"), decode("d0"))
    scene.health.probed("d0", False, 1.0)
    assert scene.chosen() == {"p0", "d0"}, "silence proves nothing"
    scene.health.probed("d0", True, 2.0)
    refused = scene.place()
    assert isinstance(refused, Refusal) and refused.error.code == "no_decode"
    scene.health.probed("d0", None, 3.0)
    assert not scene.health.alert and scene.chosen() == {"p0", "d0"}


def test_a_busy_one_rests_as_long_as_it_asked_for_within_reason():
    scene = Scene(*FOUR)
    scene.health.rest("d0", 1.0, 10.0)
    scene.health.rest("p1", 3600.0, 10.0)
    assert scene.chosen() == {"p0", "d1"}
    scene.health.tick(11.0)
    assert scene.chosen() == {"p0", "d0", "d1"}
    scene.health.tick(10.0 + MAX_REST_S)
    assert not scene.health.alert


def test_a_pair_whose_hand_over_fails_is_avoided_but_its_members_are_not():
    scene = Scene(*FOUR)
    scene.health.fail(("p0", "d0"), 1.0, 1.0)
    pairs = set()
    for _ in range(64):
        placement = scene.place()
        pairs.add(keys_of(placement)[2])
    assert ("p0", "d0") not in pairs and ("p0", "d1") in pairs
    scene.health.tick(31.0)
    assert not scene.health.apart, "it is tried again"


def test_a_pair_that_is_the_only_one_is_used():
    scene = Scene(prefill("p0"), decode("d0"))
    scene.health.fail(("p0", "d0"), 1.0, 1.0)
    assert scene.chosen() == {"p0", "d0"}


@pytest.mark.parametrize("seen", [(prefill("p0"), decode("d0", epoch=2)), (prefill("p0"),)])
def test_who_left_or_started_anew_has_a_clean_slate(seen):
    scene = Scene(prefill("p0"), decode("d0"))
    scene.health.fail("d0", 1.0, 1.0)
    scene.health.fail(("p0", "d0"), 1.0, 1.0)
    scene.health.rest("d0", 5.0, 1.0)
    scene.health.probed("d0", True, 1.0)
    scene.health.see({one.instance.instance_id: one.instance.epoch for one in seen})
    assert not scene.health.alert


def test_successes_end_a_row_of_failures():
    scene = Scene(*FOUR, failures=2)
    scene.health.fail("d0", 1.0, 1.0)
    scene.health.succeed(("p0", "d0"), 1.0, 2.0)
    assert not scene.health.alert
    assert scene.health.trips == {}


def test_states_have_names():
    scene = Scene(*FOUR)
    scene.health.fail("d0", 1.0, 1.0)
    scene.health.rest("d1", 1.0, 1.0)
    scene.health.probed("p0", True, 1.0)
    scene.health.probed("p1", False, 1.0)
    names = [scene.health.state_of(name) for name in ("d0", "d1", "p0", "p1", "x")]
    assert names == ["open", "busy", "not_ready", "silent", "closed"]
    assert scene.health.trips == {"instance": 1}


def test_with_breakers_off_nothing_is_held_against_anybody():
    scene = Scene(*FOUR, failures=0)
    scene.health.fail("d0", 1.0, 1.0)
    assert not scene.health.alert


def test_a_share_opens_a_breaker_where_no_row_of_failures_does():
    scene = Scene(*FOUR, failures=0, share=0.5)
    for number in range(22):
        at = 1.0 + number / 10
        (scene.health.fail("d0", at, at) if number % 2 else scene.health.succeed(("d0",), at, at))
    assert scene.health.state_of("d0") == "open"
    never = Scene(*FOUR, failures=0)
    for number in range(40):
        never.health.fail("d0", 1.0 + number, 1.0 + number)
    assert not never.health.alert
