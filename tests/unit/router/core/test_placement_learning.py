"""What a desk learns from what was served, and whom it remembers."""

import pytest

from router.contract.instance import EngineKind, Mode
from router.contract.ledger import Outcome
from router.core.keepers import Keepers
from router.core.placement import Desk, Placement, Rules
from router.core.policies import round_robin
from tests.support.instances import decode, fleet, intake, prefill
from tests.support.placements import NOBODY, choose, served


def test_what_was_served_is_learned():
    desk = Desk(Rules(None, learns=True))
    assert desk.learns
    placement = desk.choose(fleet(prefill(), decode()), intake(body=b"x" * 4000), 0, NOBODY)
    placement.ahead_tokens = 500
    for _ in range(400):
        desk.learn(placement, 1000, served())
    pace = placement.prefill.burden.pace, placement.decode.burden.pace
    assert pace[0].prefill.at(1500) == pytest.approx(0.5, rel=0.01)
    assert pace[1].step.at(1) == pytest.approx(0.1, rel=0.01)
    for _ in range(20):
        desk.learn(Placement(Mode.LOCAL, None, placement.decode, "x"), 1000, served(prefilled_s=0.0, content_s=0.2))
    assert desk.crossover.tokens == 1024


@pytest.mark.parametrize(
    "fields", [{"outcome": Outcome.FAILED}, {"content_s": 0.0, "prefilled_s": 0.0}, {"attempts": 2, "prefilled_s": 0.0}]
)
def test_what_says_nothing_is_not_learned(fields):
    desk = Desk(Rules(None))
    placement = desk.choose(fleet(prefill(), decode()), intake(body=b"x" * 4000), 0, NOBODY)
    before = placement.prefill.burden.pace.prefill.at(1000)
    for _ in range(20):
        desk.learn(placement, 1000, served(num_events=0, **fields))
        desk.learn(Placement(Mode.LOCAL, None, placement.decode, "x"), 1000, served(num_events=0, **fields))
    assert placement.prefill.burden.pace.prefill.at(1000) == before
    assert desk.crossover.choose(1000, streamed=False) == (False, "unknown")


def test_learning_costs_nothing_where_nobody_learns():
    assert not Desk(Rules()).learns
    assert not Desk(Rules(None, crossover_tokens=5)).learns
    assert Desk(Rules(None)).learns and Desk(Rules(learns=True)).learns


def test_what_waits_is_noted_for_those_who_learn():
    pair = fleet(prefill(), decode())
    pair.members[1].burden.take(70)
    assert choose(pair, learns=True).ahead_tokens == 70
    assert choose(pair).ahead_tokens == 0
    assert choose(pair, intake(kept_tokens=50), learns=True).ahead_tokens == 20


def test_prefill_is_told_who_served_the_turn_before():
    desk = Desk(Rules(keepers=Keepers(), prefill_policy=round_robin, decode_policy=round_robin))
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    turns = [intake(prompt=b'"' + b"x" * size) for size in (1000, 3000, 5000)]
    first, second, third = (desk.choose(folded, turn, number, NOBODY) for number, turn in enumerate(turns))
    assert first.keeper is None and second.keeper is first.decode and third.keeper is second.decode
    assert desk.choose(folded, intake(prompt=b'"' + b"y" * 5000), 3, NOBODY).keeper is None
    out = frozenset({third.decode.instance.instance_id})
    assert desk.choose(folded, turns[2], 4, out).keeper is not third.decode
    assert Desk(Rules()).choose(folded, turns[1], 0, NOBODY).keeper is None


def test_a_turn_that_ran_on_decode_alone_is_kept_there_as_well():
    desk, folded = Desk(Rules(keepers=Keepers())), fleet(prefill(), decode())
    whole = desk.choose(folded, intake(whole="n", prompt=b'"' + b"x" * 1000), 0, NOBODY)
    assert desk.choose(folded, intake(prompt=b'"' + b"x" * 2000), 1, NOBODY).keeper is whole.decode


def test_a_plain_prefill_is_told_of_nobody():
    plain = {"engine": EngineKind.VLLM, "modes": (Mode.PUSH,)}
    desk, folded = Desk(Rules(keepers=Keepers())), fleet(prefill(**plain), decode(**plain))
    for turn in range(2):
        assert desk.choose(folded, intake(prompt=b'"' + b"x" * 2000), turn, NOBODY).keeper is None
