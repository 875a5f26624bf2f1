from math import inf

import pytest

from router.core.hedging import LEAST_KNOWN, REMEMBERED, HedgeRules, Hedging


def learned(durations, tokens=100) -> Hedging:
    hedging = Hedging(HedgeRules(share=0.1), 0.0)
    for prefill_s in durations:
        hedging.learn(tokens, prefill_s)
    return hedging


def test_a_configured_time_needs_no_learning():
    assert Hedging(HedgeRules(share=0.1, after_s=0.5), 0.0).late_after_s(10**6) == 0.5


def test_nothing_is_late_before_enough_is_known():
    assert learned([1.0] * (LEAST_KNOWN - 1)).late_after_s(100) == inf
    assert learned([1.0] * LEAST_KNOWN).late_after_s(100) == 1.0


def test_late_is_what_most_do_not_exceed():
    late_s = learned([number / 100 for number in range(100)]).late_after_s(100)
    assert late_s == pytest.approx(0.95, abs=0.01)


def test_sizes_are_apart():
    hedging = learned([1.0] * LEAST_KNOWN, tokens=1000)
    assert hedging.late_after_s(1023) == 1.0
    assert hedging.late_after_s(1024) == inf


def test_what_is_old_is_forgotten():
    assert learned([9.0] * REMEMBERED + [1.0] * REMEMBERED).late_after_s(100) == 1.0


def test_hedges_are_a_share_of_all_requests_without_a_floor():
    hedging = Hedging(HedgeRules(share=0.1), 0.0)
    assert not hedging.budget.take()
    hedging.budget.accrue(20, 0.0)
    assert [hedging.budget.take() for _ in range(3)] == [True, True, False]
