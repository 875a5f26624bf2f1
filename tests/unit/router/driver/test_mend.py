from collections import Counter

import pytest

from router.contract.errors import Blame, LegUnreachable
from router.contract.instance import Mode
from router.core.placement import Placement
from router.driver import mend as module
from router.driver.mend import DELAYS_S, Mend
from tests.support.instances import decode, fleet, prefill


class Leg:
    def __init__(self):
        self.sent, self.cancelled = [], False

    def once_more(self, owner):
        self.sent.append(owner)
        return self

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def made(monkeypatch):
    """(mend, leg, whom it is among, counts) at the time 0."""
    monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    leg, among, counts = Leg(), set(), Counter()
    d0, p0 = fleet(prefill(), decode()).members
    placement = Placement(Mode.PUSH, p0, d0, "configured")
    return Mend(leg, placement, among, counts), leg, among, counts


def answer(engine_id):
    return b'{"kv_transfer_params":{"remote_engine_id":"%b"}}' % engine_id.encode()


def test_it_ends_with_the_first_good_answer(made):
    mend, leg, among, counts = made
    assert mend.due_at == DELAYS_S[0] and among == {mend} and not leg.sent
    mend.on_due(1.0)
    assert leg.sent == [mend] and mend.due_at == 1.0 + module.TRY_S
    mend.on_prefill_answer(200, [], answer(mend._placement.prefill.instance.kv.engine_id))
    assert counts == {"freed": 1} and not among


def test_another_start_of_prefill_frees_nothing(made, caplog):
    mend, leg, among, counts = made
    mend.on_due(1.0)
    mend.on_prefill_answer(200, [], answer("p0-later"))
    assert counts == {"lost": 1} and not among and len(leg.sent) == 1
    assert "instance d0 keeps blocks" in caplog.text


def test_it_tries_a_few_times_and_says_what_is_lost(made, caplog):
    mend, leg, among, counts = made
    mend.on_due(1.0)
    mend.on_prefill_answer(503, [], b"")
    assert mend.due_at == DELAYS_S[1]
    mend.on_due(2.0)
    mend.on_leg_failed(leg, LegUnreachable("No.", side=Blame.PREFILL))
    mend.on_due(3.0)
    mend.on_due(99.0)
    assert leg.cancelled, "a try that takes too long"
    assert (len(leg.sent), counts, among) == (3, {"lost": 1}, set())
    assert "instance d0 keeps blocks" in caplog.text


def test_a_router_that_stops_tries_no_more(made):
    mend, leg, among, counts = made
    mend.stop()
    assert not among and not counts and not leg.cancelled
