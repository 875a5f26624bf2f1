"""A request whose decode is chosen late, its legs' ends in the test's hand; sockets are in tests/real/router."""

import asyncio
from time import monotonic

import pytest

from router.contract.ledger import Closed, Opened, Outcome
from router.core.breaker import BreakerRules
from router.core.explain import Explanations
from router.core.hedging import HedgeRules
from router.core.intake import Endpoint, Intake
from router.core.late import LateChoice
from router.core.placement import Refusal, Rules
from router.driver.choosing import complete
from router.driver.conduct import Conduct
from router.legs.decode import DecodeLeg
from router.legs.prefill import PrefillLeg
from router.legs.take_back import TakeBack
from tests.support.instances import decode, prefill
from tests.support.scenes import DONE, EVENT, Scene, host_of, keep_legs

BODY = b'{"model":"m"}' + b" " * 40_000
PAIR = (prefill(), decode("d0"), decode("d1"))
NOBODY = frozenset()


class LateScene(Scene):
    def due(self):
        self.exchange._on_decode_due()

    def weights(self):
        return {m.instance.instance_id: m.burden.requests for m in self.router.fleet.members}

    def tickets(self):
        self.router.clerk.work_off()
        return [(entry.ticket.attempt, entry.ticket.decode) for entry in self.ledger.entries if type(entry) is Opened]


@pytest.fixture
def scene(monkeypatch):
    """A function that opens a request."""
    legs = keep_legs(monkeypatch)

    def open_(seen=PAIR, attempts=1, hedge=0.0):
        conduct = Conduct(attempts=attempts, hedge=HedgeRules(hedge, 1.0), breaker=BreakerRules(failures=1))
        rules = Rules(learns=True, late=LateChoice(0.01))
        return LateScene(legs, seen, conduct, rules, Intake(Endpoint.CHAT, BODY, "m", True, ""))

    return open_


async def test_decode_weighs_nothing_and_hears_nothing_before_it_is_due(scene):
    s = scene()
    assert len(s.of(PrefillLeg)) == 1 and not s.of(DecodeLeg) and s.weights() == {"d0": 0, "d1": 0, "p0": 1}
    assert s.tickets() == [(1, None)]
    s.due()
    (leg,) = s.of(DecodeLeg)
    name = host_of(leg)
    assert s.weights() == {"d0": 0, "d1": 0, "p0": 1} | {name: 1}
    assert b'"remote_engine_id":"p0@1"' in leg._request and s.tickets() == [(1, None), (1, name)]
    s.prefilled()
    s.decoded(EVENT + DONE, ended=True)
    record = s.finish()
    assert (record.outcome, record.decode) == (Outcome.SERVED, name)
    assert record.sent_s < record.chosen_s <= record.prefilled_s
    assert s.router.desk.rules.late.choices == {"ahead": 1}
    assert [entry.transfer_id for entry in s.ledger.entries if type(entry) is Closed] == [f"{record.request_id}.1"]


async def test_its_time_comes_by_itself(scene):
    s = scene()
    s.exchange._attempt._stop_timer()
    s.exchange.placement.decode_after_s = 0.001
    s.exchange._attempt.defer_decode(s.exchange._on_decode_due)
    async with asyncio.timeout(10.0):
        while not s.of(DecodeLeg):
            await asyncio.sleep(0.001)


async def test_prefills_answer_does_not_wait_for_decodes_time(scene):
    s = scene()
    timer = s.exchange._attempt._decode_timer
    s.prefilled()
    assert len(s.of(DecodeLeg)) == 1 and timer.cancelled()
    assert s.router.desk.rules.late.choices == {"overtaken": 1}
    s.decoded(EVENT + DONE, ended=True)
    record = s.finish()
    assert record.outcome is Outcome.SERVED and record.prefilled_s <= record.chosen_s <= record.first_byte_s


@pytest.mark.parametrize("way", ["refused", "broken", "gone", "expired"])
async def test_what_ends_before_never_has_a_decode_leg(scene, way):
    s = scene()
    timer = s.exchange._attempt._decode_timer
    if way == "refused":
        s.prefilled(status=400)
    elif way == "broken":
        s.of(PrefillLeg)[0].on_lost(type("Lost", (), {"uses": 1, "answered": False}), "cut")
    elif way == "gone":
        s.exchange.on_client_gone()
    else:
        s.exchange.on_due(s.exchange.total_at)
    assert timer.cancelled() and not s.of(DecodeLeg)
    record = s.finish()
    assert record.outcome is not Outcome.SERVED and (record.prefill, record.decode, record.chosen_s) == ("p0", "", 0.0)
    assert s.tickets() == [(1, None)]


async def test_only_prefill_is_told_that_it_is_over(scene):
    asked = prefill(), decode("d0"), decode("d1")
    for seen in asked:
        object.__setattr__(seen.instance.kv, "takes_back", True)
    s = scene(seen=asked)
    s.exchange.on_client_gone()
    assert [host_of(leg) for leg in s.of(TakeBack)] == ["p0"]
    s.finish()


@pytest.mark.parametrize("overtaken", [False, True])
async def test_nobody_there_when_decode_is_needed_is_an_honest_error(scene, overtaken):
    s = scene()
    s.now_there(prefill())
    s.prefilled() if overtaken else s.due()
    assert s.client.refused.code == "no_decode" and "again" in s.client.refused.message
    assert not s.of(DecodeLeg) and s.of(PrefillLeg)[0].cancelled is not overtaken
    assert s.finish().status == 503 and s.router.desk.rules.late.choices == {"nobody": 1}


async def test_another_attempt_may_find_a_decode_elsewhere(scene):
    both = prefill("p0", compat="a"), decode("d0", compat="a"), prefill("p1", compat="b"), decode("d1", compat="b")
    s = scene(seen=both, attempts=2)
    chosen = s.exchange.placement.prefill.instance.instance_id
    s.now_there(*(one for one in both if one.instance.instance_id != f"d{chosen[1]}"))
    s.due()
    assert s.exchange.attempts == 2 and s.exchange.placement.prefill.instance.instance_id != chosen
    s.due()
    assert len(s.of(DecodeLeg)) == 1
    s.exchange.on_client_gone()
    assert s.finish().attempts == 2


async def test_a_hedge_is_late_already_and_chooses_both(scene):
    s = scene(seen=(prefill("p0"), prefill("p1"), decode()), hedge=1.0)
    s.router._turn += 50  # requests that pay for a hedge
    s.exchange.hedge()
    assert len(s.of(PrefillLeg)) == 2 and len(s.of(DecodeLeg)) == 1
    s.exchange.on_client_gone()
    s.finish()


async def test_those_that_are_not_well_are_left_out_unless_nobody_else_is_there(scene):
    s = scene()
    open_, intake = s.exchange.placement, s.exchange.intake
    s.router.health.fail("d0", monotonic(), monotonic())
    s.router.explanations = Explanations(9)
    names = {complete(s.router, intake, open_, NOBODY).decode.instance.instance_id for _ in range(9)}
    assert names == {"d1"}
    only = complete(s.router, intake, open_, frozenset({"d1"}))
    assert only.decode.instance.instance_id == "d0", "the one that is out is better than nobody"
    assert isinstance(complete(s.router, intake, open_, frozenset({"d0", "d1"})), Refusal)
    said = [(one.prefill, one.decode) for one in s.router.explanations.newest(3)]
    assert said == [("", ""), ("p0", "d0"), ("p0", "d1")]
    s.exchange.on_client_gone()
