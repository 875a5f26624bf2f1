import pytest

from router.core.retries import HORIZON_S, RetryBudget


def spend(budget: RetryBudget) -> int:
    taken = 0
    while budget.take():
        taken += 1
    return taken


def test_at_the_start_the_floor_is_there():
    assert spend(RetryBudget(0.2, 1.0, 100.0)) == HORIZON_S


def test_requests_add_their_share():
    budget = RetryBudget(0.2, 0.0, 0.0)
    budget.accrue(50, 0.0)
    assert spend(budget) == 10


def test_in_a_storm_retries_stay_below_the_share_and_the_floor():
    budget, retries = RetryBudget(0.2, 1.0, 0.0), 0
    for tenth in range(1, 6001):
        budget.accrue(10, tenth / 10)
        retries += spend(budget)
    assert retries == pytest.approx(HORIZON_S + 60_000 * 0.2 + 600, rel=0.02)


def test_what_is_not_used_fades():
    budget = RetryBudget(0.2, 1.0, 0.0)
    budget.accrue(1_000_000, 0.0)
    budget.accrue(0, 100 * HORIZON_S)
    assert spend(budget) in (HORIZON_S, HORIZON_S - 1)


def test_a_clock_that_stands_still_adds_no_floor():
    budget = RetryBudget(0.0, 1.0, 5.0)
    spend(budget)
    budget.accrue(0, 5.0)
    budget.accrue(0, 4.0)
    assert not budget.take()


def test_what_has_not_gone_may_go_later():
    budget = RetryBudget(0.2, 1.0, 0.0)
    assert spend(budget) == HORIZON_S
    budget.give_back()
    assert spend(budget) == 1
