import pytest

from router.core.late import LEAST_KNOWN, REMEMBERED, LateChoice


def taught(lead_s=0.1, *ratios: float) -> LateChoice:
    late = LateChoice(lead_s)
    for ratio in ratios:
        late.learn(2.0, 2.0 * ratio)
    return late


def test_of_what_nothing_is_known_half_is_waited_for_less_the_lead():
    assert taught(0.1).after_s(2.0) == pytest.approx(0.9)
    assert taught(0.1, *[1.0] * (LEAST_KNOWN - 1)).after_s(2.0) == pytest.approx(0.9)


def test_what_has_always_come_as_expected_is_waited_for():
    assert taught(0.1, *[1.0] * LEAST_KNOWN).after_s(2.0) == pytest.approx(1.9)


def test_the_quickest_of_late_count_and_no_prefill_is_waited_for_beyond_its_expected_end():
    ratios = [1.0] * 54 + [0.6] * 3 + [0.7] * 7
    assert taught(0.0, *ratios).after_s(1.0) == pytest.approx(0.7), "3 of 64 were quicker still"
    assert taught(0.0, *[3.0] * 20).after_s(1.0) == pytest.approx(1.0)


def test_what_was_long_ago_is_forgotten():
    assert taught(0.0, *[0.2] * 64, *[1.0] * REMEMBERED).after_s(1.0) == pytest.approx(1.0)


def test_what_is_over_within_the_lead_is_chosen_for_at_once():
    assert taught(0.5, *[1.0] * 20).after_s(0.4) < 0.0


def test_a_prefill_of_which_nothing_was_expected_teaches_nothing():
    late = LateChoice(0.0)
    for _ in range(20):
        late.learn(0.0, 1.0)
    assert late.after_s(1.0) == 0.5
