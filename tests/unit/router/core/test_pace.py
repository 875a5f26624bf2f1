import pytest

from router.core.pace import PREFILL_GUESS, Pace, Trend


def test_a_line_begins_as_its_guess():
    line = Trend(0.5, 0.25, 8.0)
    assert (line.at(0), line.at(8)) == (0.5, 2.5)


def test_a_line_finds_the_line_that_it_observes():
    line = Trend(*PREFILL_GUESS)
    for number in range(300):
        tokens = 100 + number * 37 % 4000
        line.add(tokens, 0.05 + tokens / 2000)
    assert line.at(100) == pytest.approx(0.1, rel=0.02)
    assert line.at(4000) == pytest.approx(2.05, rel=0.02)


def test_observations_at_one_place_move_the_base_only():
    line = Trend(0.0, 0.0, 1.0)
    line.slope = 0.001
    for _ in range(2000):
        line.add(100, 0.5)
    assert line.at(100) == pytest.approx(0.5)


def test_a_line_follows_a_change():
    line = Trend(0.0, 0.001, 1000.0)
    for scale in (1, 3):
        for number in range(200):
            line.add(number * 10, scale * number * 0.01)
    assert line.at(1000) == pytest.approx(3.0, rel=0.01)


def test_a_line_is_never_negative():
    line = Trend(0.0, 0.001, 100.0)
    for number in range(50):
        line.add(number, max(0.0, 1.0 - number))
    assert line.base >= 0 <= line.slope
    steep = Trend(0.0, 0.0, 1.0)
    for number in range(1, 50):
        steep.add(number, float(number * number))
    assert steep.base >= 0 <= steep.slope


def test_everybody_begins_alike():
    one, other = Pace(), Pace()
    assert one.prefill.at(1000) == other.prefill.at(1000) == pytest.approx(0.145)
    assert one.step.at(50) == pytest.approx(0.02)
