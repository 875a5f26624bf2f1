"""The exchange with its legs' ends in the test's hand; real sockets are in tests/real/router."""

from time import monotonic

import pytest

from router.contract.errors import Blame, Draining, Impossible, LegBroken
from router.contract.instance import Mode
from router.contract.ledger import Outcome
from router.core.intake import Endpoint, Intake
from router.core.lifecycle import Edge
from router.core.placement import Rules
from router.core.timing import Deadlines
from router.driver.conduct import Conduct
from router.driver.ending import GONE_STATUS
from router.legs.decode import DecodeLeg
from tests.support.instances import decode, prefill
from tests.support.scenes import DONE, EVENT, JSON, Line, Scene, keep_legs, params_of

PAIR = (prefill(), decode())
DEADLINES = Deadlines(prefill_s=10, prefill_token_s=0, first_token_s=20, next_token_s=5, stalled_s=7, total_s=100)


@pytest.fixture
def scene(monkeypatch):
    """A function that opens a request."""
    legs = keep_legs(monkeypatch)

    def open_(mode=Mode.PUSH, stream=True, seen=PAIR, attempts=2):
        conduct = Conduct(deadlines=DEADLINES, attempts=attempts)
        return Scene(legs, seen, conduct, Rules(mode=mode), Intake(Endpoint.CHAT, b'{"model":"m"}', "m", stream, ""))

    return open_


async def test_a_stream_is_served_and_recorded(scene):
    s = scene()
    assert len(s.legs) == 2
    s.prefilled()
    first = b'data: {"choices":[{"text":"a"}]}\n\n'
    s.decoded(first, ended=False)
    s.decoded(DONE, ended=True)
    record = s.finish()
    assert s.client.body == first + DONE and s.client.ended
    assert (record.outcome, record.status, record.attempts, record.num_events) == (Outcome.SERVED, 200, 1, 1)
    assert record.content_s == record.first_byte_s
    assert 0 < record.sent_s <= record.placed_s <= record.prefilled_s <= record.first_byte_s
    assert record.first_byte_s <= record.last_byte_s <= record.ended_s


async def test_pull_sends_decode_what_prefill_said(scene):
    s = scene(Mode.PULL)
    assert len(s.legs) == 1
    s.prefilled()
    assert b'"kv_transfer_params":' + params_of("p0") in s.of(DecodeLeg)[-1]._request


async def test_a_whole_answer_is_delivered(scene):
    s = scene(stream=False)
    s.prefilled()
    s.decoded(b"{}", ended=True, headers=JSON)
    assert s.client.answered.body == b"{}"
    assert s.finish().status == 200


async def test_a_lost_leg_is_tried_elsewhere_and_the_first_failure_is_the_answer(scene):
    s = scene(seen=(prefill("p0"), decode("d0"), decode("d1")), attempts=5)
    first, paid = s.of(DecodeLeg)[-1], s.router.retries.tokens
    first.on_unreachable("refused")
    assert s.exchange.attempts == 2 and len(s.legs) == 4
    assert s.legs[0].cancelled, "prefill of the first attempt is stopped"
    assert s.of(DecodeLeg)[-1]._pool is not first._pool
    s.of(DecodeLeg)[-1].on_unreachable("refused again")
    assert s.client.refused.code == "decode_unreachable" and "again" in s.client.refused.message
    assert s.finish().outcome is Outcome.FAILED
    assert s.books.retries == ["decode_unreachable"], "the second one found nobody to be tried again on"
    assert s.router.retries.tokens == pytest.approx(paid - 1, abs=0.3), "and costs nothing of the budget"


async def test_an_engines_refusal_is_final(scene):
    s = scene()
    s.prefilled(status=400, body=b'{"no":1}')
    assert s.client.answered.body == b'{"no":1}'
    assert s.of(DecodeLeg)[-1].cancelled
    assert s.finish().outcome is Outcome.REFUSED


async def test_a_prefill_without_hand_over_fails_the_request(scene):
    s = scene(attempts=1)
    s.prefilled(body=b"{}")
    assert s.client.refused.code == "transfer_failed"


async def test_a_prefill_that_fails_late_changes_nothing(scene):
    s = scene()
    s.decoded(EVENT, ended=False)
    s.prefilled(status=500, body=b"")
    s.decoded(DONE, ended=True)
    assert s.finish().outcome is Outcome.SERVED


async def test_a_broken_stream_is_broken_off(scene):
    s = scene()
    s.decoded(EVENT, ended=False)
    s.exchange.on_leg_failed(s.of(DecodeLeg)[-1], LegBroken("Cut.", side=Blame.DECODE))
    assert s.client.broken[0].message == "Cut." and s.client.broken[1] is True
    assert s.legs[0].cancelled
    record = s.finish()
    assert (record.outcome, record.code, record.status) == (Outcome.FAILED, "leg_broken", 200)


async def test_a_bad_answer_that_goes_on_is_cut(scene, monkeypatch):
    monkeypatch.setattr("router.driver.reply.MAX_HELD_BYTES", 3)
    s = scene(attempts=1)
    line = s.of(DecodeLeg)[-1].connection = Line(400, JSON)
    s.decoded(b"12345", ended=False)
    assert line.done == ["abort"] and s.client.refused.code == "leg_broken"


async def test_a_client_that_leaves_stops_both(scene):
    s = scene()
    s.exchange.on_client_gone()
    assert all(leg.cancelled for leg in s.legs)
    record = s.finish()
    assert (record.outcome, record.status, record.code) == (Outcome.ABANDONED, GONE_STATUS, "client_gone")
    assert not s.client.over


async def test_a_client_that_leaves_in_mid_stream_had_its_status(scene):
    s = scene()
    s.decoded(EVENT, ended=False)
    s.exchange.on_client_gone()
    assert s.finish().status == 200


async def test_a_slow_client_holds_decode_back_and_is_given_up_in_the_end(scene):
    s = scene()
    s.exchange.on_client_paused()
    s.exchange.on_client_resumed()
    s.decoded(EVENT, ended=False)
    line = s.of(DecodeLeg)[-1].connection
    s.exchange.on_client_paused()
    assert line.done == ["pause"]
    now = monotonic()
    s.exchange.on_due(now + 6)
    assert not s.client.abandoned and now + 6 < s.exchange.due_at <= now + 8
    s.exchange.on_client_resumed()
    assert line.done == ["pause", "resume"]
    s.exchange.on_client_paused()
    s.exchange.on_due(monotonic() + 8)
    assert s.client.abandoned and s.finish().outcome is Outcome.ABANDONED


async def test_a_phase_that_runs_out_is_a_failure_of_its_side(scene):
    s = scene(attempts=1)
    assert s.exchange.due_at <= monotonic() + 10
    s.exchange.on_due(monotonic() + 1)
    assert not s.client.over
    s.exchange.on_due(monotonic() + 11)
    assert s.client.refused.code == "prefill_timeout"
    assert all(leg.cancelled for leg in s.legs)
    s.finish()


async def test_decode_that_runs_out_is_cancelled_and_tried_elsewhere(scene):
    s = scene(seen=(prefill("p0"), decode("d0"), decode("d1")))
    s.prefilled()
    silent = s.of(DecodeLeg)[-1]
    s.exchange.on_due(monotonic() + 21)
    assert silent.cancelled and s.exchange.attempts == 2 and not s.client.over


async def test_the_total_ends_it_whatever_it_does(scene):
    s = scene()
    s.exchange.on_due(monotonic() + 51)
    assert s.client.refused.code == "deadline_exceeded"
    s.finish()


async def test_a_fact_without_a_row_ends_the_request_as_a_bug_and_the_log_names_both(scene, caplog):
    s = scene()
    s.exchange._step(Edge.DECODE_DONE)
    assert isinstance(s.client.refused, Impossible)
    (line,) = caplog.messages
    assert s.exchange.request_id in line and "DECODE_DONE" in line and "client waiting" in line
    with pytest.raises(Impossible):
        s.exchange.expire(Draining("Over."))
    with pytest.raises(Impossible):
        s.exchange.on_prefill_answer(200, [], b"")
