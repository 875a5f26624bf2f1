"""Decode that is left open and chosen late."""

import pytest

from router.contract.errors import NoDecode
from router.contract.instance import Mode
from router.core.keepers import Keepers
from router.core.late import LEAST_KNOWN, LateChoice
from router.core.placement import Desk, Rules
from router.core.policies import round_robin
from tests.support.instances import decode, fleet, intake, prefill
from tests.support.placements import LONG, NOBODY, chosen, refused, served


def late_desk(lead_s=0.1, mode: Mode | None = Mode.PUSH) -> Desk:
    return Desk(Rules(mode, learns=True, late=LateChoice(lead_s)))


@pytest.mark.parametrize("mode", [Mode.PUSH, None])
def test_decode_is_left_open_until_shortly_before_prefills_expected_end(mode):
    folded = fleet(prefill(), decode())
    placement = late_desk(mode=mode).choose(folded, intake(body=LONG), 0, NOBODY)
    if mode is None:  # short and unknown prompts are local; these are not
        assert placement.reason == "long"
    assert placement.prefill is not None and placement.decode is None and placement.mode is Mode.PUSH
    expected_s = placement.prefill.burden.pace.prefill.at(10_001)
    assert placement.decode_after_s == pytest.approx(expected_s / 2 - 0.1)
    folded.members[1].burden.take(50_000)  # at prefill, whose queue counts
    assert late_desk().choose(folded, intake(body=LONG), 0, NOBODY).decode_after_s > 3 * placement.decode_after_s


@pytest.mark.parametrize(
    ("desk", "request_", "mode"),
    [
        (late_desk(lead_s=2.0), intake(body=LONG), Mode.PUSH),
        (late_desk(), intake(), Mode.PUSH),
        (late_desk(mode=Mode.PULL), intake(body=LONG), Mode.PULL),
        (late_desk(), intake(body=LONG, whole="n"), Mode.LOCAL),
        (Desk(Rules()), intake(body=LONG), Mode.PUSH),
    ],
)
def test_decode_is_chosen_at_once_where_that_costs_no_blocks_or_nobody_wants_it_late(desk, request_, mode):
    placement = desk.choose(fleet(prefill(), decode()), request_, 0, NOBODY)
    assert placement.mode is mode and placement.decode is not None and placement.decode_after_s == 0.0


def test_nobody_to_take_the_kv_is_said_before_anything_is_computed():
    assert refused(late_desk().choose(fleet(prefill()), intake(body=LONG), 0, NOBODY)) is NoDecode


def test_a_late_decode_is_one_of_the_fleet_as_it_is_by_then():
    desk, request = late_desk(), intake(body=LONG)
    open_ = desk.choose(fleet(prefill(), decode("d0")), request, 0, NOBODY)
    complete = desk.complete(fleet(prefill(), decode("d1"), decode("d2", compat="other")), request, open_, NOBODY)
    assert chosen(complete) == ("p0", "d1", Mode.PUSH, "configured") and complete.decode_after_s == 0.0
    assert (open_.decode, complete.ahead_tokens) == (None, open_.ahead_tokens), "who holds the open one sees no change"


def test_late_decodes_take_turns():
    desk, request = Desk(Rules(learns=True, late=LateChoice(0.1), decode_policy=round_robin)), intake(body=LONG)
    folded = fleet(prefill(), decode("d0"), decode("d1"))
    open_ = desk.choose(folded, request, 0, NOBODY)
    assert len({chosen(desk.complete(folded, request, open_, NOBODY))[1] for _ in range(2)}) == 2


@pytest.mark.parametrize("now", [(prefill(draining=True), decode()), (decode(),)])
def test_a_prefill_that_drains_or_has_left_still_finds_a_decode(now):
    desk, request = late_desk(), intake(body=LONG)
    open_ = desk.choose(fleet(prefill(), decode()), request, 0, NOBODY)
    assert chosen(desk.complete(fleet(*now), request, open_, NOBODY))[:2] == ("p0", "d0")


@pytest.mark.parametrize(
    "now", [(), (prefill(),), (prefill(), decode(draining=True)), (prefill(), decode(compat="other"))]
)
def test_a_decode_that_is_gone_when_it_is_needed_is_missed(now):
    desk, request = late_desk(), intake(body=LONG)
    open_ = desk.choose(fleet(prefill(), decode()), request, 0, NOBODY)
    assert refused(desk.complete(fleet(*now), request, open_, NOBODY)) is NoDecode
    assert refused(desk.complete(fleet(prefill(), decode()), request, open_, frozenset({"d0"}))) is NoDecode


def test_how_well_prefills_end_was_told_is_learned():
    desk, request = late_desk(lead_s=0.0), intake(body=LONG)
    for _ in range(30 * LEAST_KNOWN):
        open_ = desk.choose(fleet(prefill(), decode()), request, 0, NOBODY)
        open_.prefill.burden.pace.prefill.slope = 1e-4
        open_.prefill.burden.pace.prefill.base = 0.0
        desk.learn(open_, 10_000, served(prefilled_s=0.81))
    assert desk.rules.late.after_s(1.0) == pytest.approx(0.8), "all needed 0.8 of what was expected"


def test_a_decode_that_was_chosen_late_is_the_one_that_keeps():
    desk = Desk(Rules(keepers=Keepers(), learns=True, late=LateChoice(0.1)))
    request = intake(body=LONG, prompt=b'"' + b"x" * 2000)
    open_ = desk.choose(fleet(prefill(), decode("d0")), request, 0, NOBODY)
    now = fleet(prefill(), decode("d1"))
    late = desk.complete(now, request, open_, NOBODY)
    assert desk.choose(now, request, 1, NOBODY).keeper is late.decode
