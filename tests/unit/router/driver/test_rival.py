"""A hedged request with its legs' ends in the test's hand; real sockets are in tests/real/router/test_hedging.py."""

from time import monotonic

import pytest

from router.contract.ids import transfer_id_of
from router.contract.instance import Mode
from router.contract.ledger import Closed, Opened, Outcome
from router.core.admission import Admission
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.hedging import HedgeRules
from router.core.intake import Endpoint, Intake
from router.core.placement import Desk, Rules
from router.driver.conduct import Conduct
from router.driver.router import Router
from router.legs.decode import DecodeLeg
from router.legs.pool import LegPool
from router.legs.prefill import PrefillLeg
from router.legs.take_back import TakeBack
from tests.support.books import KeptBooks, KeptLedger
from tests.support.clients import KeptClient
from tests.support.instances import decode, prefill

SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]
FOUR = (prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))


class Line:
    def __init__(self, status, headers):
        self.status, self.headers = status, headers

    def abort(self):
        pass


class Scene:
    def __init__(self, legs, mode, seen, share, attempts):
        self.legs = legs
        conduct = Conduct(hedge=HedgeRules(share=share, after_s=1.0), attempts=attempts)
        self.router = Router(Desk(Rules(mode=mode)), Burdens(), Admission(9, 0), conduct)
        self.books, self.ledger = KeptBooks(), KeptLedger()
        self.router.attach(self.ledger, self.books)
        self.router.take_fleet(fold(seen, self.router.burdens, 0.0))
        self.client = KeptClient()
        intake = Intake(Endpoint.CHAT, b'{"model":"m"}', "m", True, "")
        self.exchange = self.router.open(self.client, intake, self.router.mint(), 50.0)

    def late(self):
        self.exchange.on_due(monotonic() + 1.1)

    def of(self, kind, number):
        return [leg for leg in self.legs if isinstance(leg, kind)][number]

    def prefilled(self, number, status=200):
        leg = self.of(PrefillLeg, number)
        who = b'"remote_engine_id":"%b@1","remote_request_id":"r"' % leg._pool._at.host.encode()
        where = b'"remote_host":"h","remote_port":1,"tp_size":1,"remote_block_ids":[[0]]'
        handed = b'{"kv_transfer_params":{%b,%b}}' % (who, where)
        leg.on_answer(Line(status, JSON), handed, True)

    def decoded(self, number, body, *, ended, status=200):
        leg = self.of(DecodeLeg, number)
        leg.connection = leg.connection or Line(status, SSE)
        leg.on_answer(leg.connection, body, ended)

    def finish(self):
        """The record, once nothing of the request is left."""
        self.router.clerk.work_off()
        (record,) = self.books.records
        assert not self.router.live and self.router.admission.requests == 0 and self.exchange.rival is None
        assert all(m.burden.requests == 0 and m.burden.tokens == 0 for m in self.router.fleet.members)
        tickets = [entry.ticket for entry in self.ledger.entries if isinstance(entry, Opened)]
        opened = [transfer_id_of(ticket.request_id, ticket.attempt) for ticket in tickets]
        closed = [entry.transfer_id for entry in self.ledger.entries if isinstance(entry, Closed)]
        assert sorted(opened) == sorted(closed), "every ticket is closed once"
        return record


@pytest.fixture
def scene(monkeypatch):
    legs = []
    monkeypatch.setattr(LegPool, "want", lambda self, leg: legs.append(leg))
    monkeypatch.setattr(TakeBack, "send", lambda self, request: None)
    return lambda mode=Mode.PUSH, seen=FOUR, share=1.0, attempts=2: Scene(legs, mode, seen, share, attempts)


async def test_a_late_prefill_gets_a_rival_with_both_legs_under_a_fresh_id(scene):
    s = scene()
    s.exchange.on_due(monotonic() + 0.5)
    assert len(s.legs) == 2 and s.exchange.due_at <= s.exchange.arrived_at + 1.1
    s.late()
    assert len(s.legs) == 4 and s.router.hedges == {"sent": 1}
    first, second = s.of(PrefillLeg, 0), s.of(PrefillLeg, 1)
    assert first._pool is not second._pool, "another prefill"
    assert b".1\r\n" in first._request and b".2\r\n" in second._request and b".2\r\n" in s.of(DecodeLeg, 1)._request
    s.late()
    assert len(s.legs) == 4, "one rival, no more"
    s.exchange.on_client_gone()
    assert all(leg.cancelled for leg in s.legs)
    assert s.finish().outcome is Outcome.ABANDONED


async def test_an_answer_that_has_begun_before_prefill_is_done_gets_no_rival(scene):
    s = scene()
    s.decoded(0, b"data: 1\n\n", ended=False)
    s.late()
    assert len(s.legs) == 2 and not s.router.hedges
    s.prefilled(0)
    s.decoded(0, b"data: [DONE]\n\n", ended=True)
    assert s.client.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert s.finish().outcome is Outcome.SERVED


async def test_the_rival_wins_with_its_first_good_byte(scene):
    s = scene()
    s.late()
    s.prefilled(1)
    s.decoded(1, b"data: 1\n\n", ended=False)
    assert [leg.cancelled for leg in s.legs] == [True, True, False, False]
    assert s.client.body == b"data: 1\n\n"
    s.decoded(1, b"data: 1\n\ndata: [DONE]\n\n", ended=True)
    record = s.finish()
    assert (record.outcome, record.attempts, record.status) == (Outcome.SERVED, 2, 200)
    assert [earlier.code for earlier in record.earlier] == ["hedge_lost"] and s.books.retries == []
    assert s.router.hedges == {"sent": 1, "won": 1}
    assert 0 < record.sent_s <= record.prefilled_s <= record.first_byte_s


async def test_the_first_may_still_win(scene):
    s = scene()
    s.late()
    s.prefilled(0)
    s.decoded(0, b"data: 1\n\n", ended=False)
    assert [leg.cancelled for leg in s.legs] == [False, False, True, True]
    s.decoded(0, b"data: [DONE]\n\n", ended=True)
    record = s.finish()
    assert (record.outcome, record.attempts, record.earlier) == (Outcome.SERVED, 1, ())
    assert s.router.hedges == {"sent": 1, "lost": 1}


@pytest.mark.parametrize("attempts", [1, 2])
async def test_when_the_first_fails_the_rival_goes_on_in_its_place(scene, attempts):
    s = scene(attempts=attempts)
    s.late()
    s.of(DecodeLeg, 0).on_unreachable("refused")
    assert len(s.legs) == 4 and not s.client.over, "no third attempt"
    assert [leg.cancelled for leg in s.legs[2:]] == [False, False]
    s.prefilled(1)
    s.decoded(1, b"data: 1\n\ndata: [DONE]\n\n", ended=True)
    record = s.finish()
    assert (record.outcome, record.attempts) == (Outcome.SERVED, 2)
    assert s.books.retries == ["decode_unreachable"]


async def test_when_both_fail_a_third_has_an_id_of_its_own(scene):
    s = scene(attempts=9)
    s.late()
    s.of(DecodeLeg, 1).on_unreachable("refused")
    assert s.router.hedges == {"sent": 1, "failed": 1} and not s.client.over
    s.of(DecodeLeg, 0).on_unreachable("refused")
    assert b".3\r\n" in s.of(DecodeLeg, 2)._request
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
    s.decoded(0, b"data: 1\n\ndata: [DONE]\n\n", ended=True)
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
