import pytest

from router.core.breaker import Breaker, BreakerRules, BreakerState

RULES = BreakerRules(failures=3, open_s=2.0, open_max_s=5.0)
CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN


def opened(rules=RULES) -> Breaker:
    """A breaker that opened at 10."""
    breaker = Breaker(rules)
    while not breaker.fail(9.0, 10.0):
        assert breaker.state is CLOSED
    return breaker


def test_failures_in_a_row_open_it():
    breaker = Breaker(RULES)
    assert [breaker.fail(n, n) for n in (1.0, 2.0)] == [False, False]
    breaker.succeed(2.0, 3.0)
    assert breaker.pristine
    assert [breaker.fail(n, n) for n in (4.0, 5.0, 6.0)] == [False, False, True]
    assert (breaker.state, breaker.shut, breaker.opened_at) == (OPEN, True, 6.0)


def test_with_0_failures_it_never_opens():
    breaker = Breaker(BreakerRules(failures=0))
    assert not any(breaker.fail(n, n) for n in range(100))


def test_the_while_over_one_canary_goes_and_its_answer_closes_it():
    breaker = opened()
    breaker.tick(11.9)
    assert breaker.state is OPEN
    breaker.tick(12.0)
    assert (breaker.state, breaker.shut) == (HALF_OPEN, False)
    breaker.canary = "attempt"
    assert breaker.shut, "one canary, no more"
    breaker.begin_answer(12.0, 12.5)
    assert breaker.pristine and breaker.canary is None


@pytest.mark.parametrize(("round_", "lasts_s"), [(1, 2.0), (2, 4.0), (3, 5.0), (9, 5.0)])
def test_a_canary_that_fails_opens_it_for_longer(round_, lasts_s):
    breaker, now = opened(), 10.0
    for _ in range(round_ - 1):
        now = breaker.half_opens_at
        breaker.tick(now)
        assert breaker.fail(now, now)
    assert breaker.half_opens_at == now + lasts_s


def test_legs_that_left_before_it_opened_prove_nothing():
    breaker = opened()
    breaker.begin_answer(9.9, 11.0)
    breaker.succeed(9.9, 11.0)
    assert breaker.state is OPEN
    breaker.tick(12.0)
    assert not breaker.fail(9.9, 12.1)
    assert breaker.state is HALF_OPEN


def test_one_that_was_tried_while_open_goes_to_the_back_of_the_line_or_is_well():
    breaker = opened()
    assert not breaker.fail(11.0, 11.5)
    assert (breaker.opened_at, breaker.trips) == (11.5, 1)
    breaker.begin_answer(11.6, 11.7)
    assert breaker.pristine


def test_a_begun_answer_does_not_forgive_what_was_before():
    breaker = Breaker(RULES)
    breaker.fail(1.0, 1.0)
    breaker.begin_answer(2.0, 2.0)
    assert breaker.failures == 1, "an instance that always breaks off after its first token is not well"


SHARED = BreakerRules(failures=99, share=0.5, window_s=10.0)


def ends(breaker, turns, good_per_bad, at=1.0):
    """So many failures, each followed by so many successes; how many of them have opened the breaker."""
    opened = 0
    for turn in range(turns):
        opened += breaker.fail(at + turn / 1000, at)
        for good in range(good_per_bad):
            breaker.succeed(at + turn / 1000 + (good + 1) / 10_000, at)
    return opened


def test_a_share_of_failures_opens_it_though_they_are_not_in_a_row():
    breaker = Breaker(SHARED)
    assert ends(breaker, 10, 1) == 0 and breaker.state is CLOSED and breaker.failures == 0
    assert breaker.fail(2.0, 2.0)
    assert breaker.state is OPEN


def test_a_smaller_share_or_none_wanted_leaves_it_closed():
    assert ends(Breaker(SHARED), 50, 2) == 0
    assert ends(Breaker(BreakerRules(failures=99)), 50, 1) == 0


def test_what_was_long_ago_counts_no_more_and_is_forgotten():
    breaker = Breaker(SHARED)
    ends(breaker, 10, 1)
    assert not breaker.pristine
    breaker.tick(12.0)
    assert breaker.pristine
    assert ends(breaker, 10, 1, at=14.0) == 0


def test_an_end_that_is_told_twice_counts_once():
    breaker = Breaker(SHARED)
    for number in range(10):
        breaker.fail(float(number), 10.0)
        for _ in range(3):
            breaker.succeed(number + 0.5, 10.0)
    assert breaker.fail(10.0, 10.0)
