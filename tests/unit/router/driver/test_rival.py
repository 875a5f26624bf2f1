"""A hedged request with its legs' ends in the test's hand; real sockets are in tests/real/router/test_hedging.py."""

from time import monotonic

import pytest

from router.contract.instance import Mode
from router.contract.ledger import Outcome
from router.core.hedging import HedgeRules
from router.core.placement import Rules
from router.driver.conduct import Conduct
from router.legs.decode import DecodeLeg
from router.legs.prefill import PrefillLeg
from tests.support.instances import decode, prefill
from tests.support.scenes import DONE, EVENT, Scene, keep_legs

FOUR = (prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))


class HedgedScene(Scene):
    def late(self):
        self.exchange.on_due(monotonic() + 1.1)

    def finish(self):
        opened, closed = self.transfers()
        assert sorted(opened) == sorted(closed), "every ticket is opened once and closed once"
        return super().finish()


@pytest.fixture
def scene(monkeypatch):
    """A function that opens a request."""
    legs = keep_legs(monkeypatch)

    def open_(mode=Mode.PUSH, seen=FOUR, share=1.0, attempts=2):
        conduct = Conduct(hedge=HedgeRules(share=share, after_s=1.0), attempts=attempts)
        return HedgedScene(legs, seen, conduct, Rules(mode=mode))

    return open_


async def test_a_late_prefill_gets_a_rival_with_both_legs_under_a_fresh_id(scene):
    s = scene()
    s.exchange.on_due(monotonic() + 0.5)
    assert len(s.legs) == 2 and s.exchange.due_at <= s.exchange.arrived_at + 1.1
    s.late()
    assert len(s.legs) == 4 and s.router.hedges == {"sent": 1}
    first, second = s.of(PrefillLeg)[0], s.of(PrefillLeg)[1]
    assert first._pool is not second._pool, "another prefill"
    assert b".1\r\n" in first._request and b".2\r\n" in second._request and b".2\r\n" in s.of(DecodeLeg)[1]._request
    s.late()
    assert len(s.legs) == 4, "one rival, no more"
    s.exchange.on_client_gone()
    assert all(leg.cancelled for leg in s.legs)
    assert s.finish().outcome is Outcome.ABANDONED


async def test_an_answer_that_has_begun_before_prefill_is_done_gets_no_rival(scene):
    s = scene()
    s.decoded(EVENT, 0, ended=False)
    s.late()
    assert len(s.legs) == 2 and not s.router.hedges
    s.prefilled(0)
    s.decoded(DONE, 0, ended=True)
    assert s.client.body == EVENT + DONE
    assert s.finish().outcome is Outcome.SERVED


async def test_the_rival_wins_with_its_first_good_byte(scene):
    s = scene()
    s.late()
    s.prefilled(1)
    s.decoded(EVENT, 1, ended=False)
    assert [leg.cancelled for leg in s.legs] == [True, True, False, False]
    assert s.client.body == EVENT
    s.decoded(EVENT + DONE, 1, ended=True)
    record = s.finish()
    assert (record.outcome, record.attempts, record.status) == (Outcome.SERVED, 2, 200)
    assert [earlier.code for earlier in record.earlier] == ["hedge_lost"] and s.books.retries == []
    assert s.router.hedges == {"sent": 1, "won": 1}
    assert 0 < record.sent_s <= record.prefilled_s <= record.first_byte_s


async def test_the_first_may_still_win(scene):
    s = scene()
    s.late()
    s.prefilled(0)
    s.decoded(EVENT, 0, ended=False)
    assert [leg.cancelled for leg in s.legs] == [False, False, True, True]
    s.decoded(DONE, 0, ended=True)
    record = s.finish()
    assert (record.outcome, record.attempts, record.earlier) == (Outcome.SERVED, 1, ())
    assert s.router.hedges == {"sent": 1, "lost": 1}


@pytest.mark.parametrize("attempts", [1, 2])
async def test_when_the_first_fails_the_rival_goes_on_in_its_place(scene, attempts):
    s = scene(attempts=attempts)
    s.late()
    s.of(DecodeLeg)[0].on_unreachable("refused")
    assert len(s.legs) == 4 and not s.client.over, "no third attempt"
    assert [leg.cancelled for leg in s.legs[2:]] == [False, False]
    s.prefilled(1)
    s.decoded(EVENT + DONE, 1, ended=True)
    record = s.finish()
    assert (record.outcome, record.attempts) == (Outcome.SERVED, 2)
    assert s.books.retries == ["decode_unreachable"]


async def test_when_both_fail_a_third_has_an_id_of_its_own(scene):
    s = scene(attempts=9)
    s.late()
    s.of(DecodeLeg)[1].on_unreachable("refused")
    assert s.router.hedges == {"sent": 1, "failed": 1} and not s.client.over
    s.of(DecodeLeg)[0].on_unreachable("refused")
    assert b".3\r\n" in s.of(DecodeLeg)[2]._request
    s.exchange.on_client_gone()
    s.finish()


async def test_an_engines_refusal_of_the_first_is_final_for_both(scene):
    s = scene()
    s.late()
    s.prefilled(0, status=400)
    assert s.client.answered.status == 400 and all(leg.cancelled for leg in s.legs[1:])
    s.finish()


async def test_in_pull_mode_the_rivals_decode_waits_for_its_own_prefill(scene):
    s = scene(Mode.PULL)
    s.late()
    assert [type(leg) for leg in s.legs] == [PrefillLeg, PrefillLeg]
    s.prefilled(1)
    assert isinstance(s.legs[2], DecodeLeg)
    s.decoded(EVENT + DONE, 0, ended=True)
    assert s.finish().attempts == 2 and s.router.hedges["won"] == 1


@pytest.mark.parametrize(
    ("seen", "share", "why"), [((prefill("p0"), decode("d0")), 1.0, "nobody"), (FOUR, 0.01, "denied")]
)
async def test_without_another_prefill_or_budget_there_is_no_rival(scene, seen, share, why):
    s = scene(seen=seen, share=share)
    s.late()
    assert len(s.legs) == 2 and s.router.hedges == {why: 1}
    s.exchange.on_client_gone()
    s.finish()


async def test_an_answered_prefill_is_not_late_any_more(scene):
    s = scene()
    s.prefilled(0)
    s.late()
    assert len(s.legs) == 2
    s.exchange.on_client_gone()
    s.finish()


async def test_by_default_nobody_is_hedged(scene):
    s = scene(share=0.0)
    s.late()
    assert len(s.legs) == 2 and s.router.hedging is None
    s.exchange.on_client_gone()
    s.finish()
