import pytest

from router.core.crossover import ENOUGH, EXPLORE, LONGEST_TOKENS, Crossover


def teach(crossover, tokens, local_s, split_s, times=ENOUGH):
    for _ in range(times):
        crossover.learn(tokens, local_s, local=True)
        crossover.learn(tokens, split_s, local=False)


def choices(crossover, tokens, num, streamed=True):
    return [crossover.choose(tokens, streamed=streamed) for _ in range(num)]


def test_a_fixed_size_divides_short_from_long():
    crossover = Crossover(100)
    teach(crossover, 10, 9.0, 0.1)
    assert choices(crossover, 99, 2) == [(True, "short")] * 2
    assert choices(crossover, 100, 2) == [(False, "long")] * 2
    assert crossover.tokens == 100


def test_at_first_prompts_are_handed_over_and_a_quarter_of_the_streams_tries_the_other_way():
    tried = choices(Crossover(), 500, 40)
    assert tried.count((True, "explored")) == 10
    assert tried.count((False, "unknown")) == 30


def test_only_streams_explore():
    assert choices(Crossover(), 500, 40, streamed=False) == [(False, "unknown")] * 40


@pytest.mark.parametrize(("local_s", "wins"), [(0.1, True), (0.2, True), (0.3, False)])
def test_the_quicker_way_is_taken_and_the_other_tried_now_and_then(local_s, wins):
    crossover = Crossover()
    teach(crossover, 500, local_s, 0.2)
    tried = choices(crossover, 500, 2 * EXPLORE)
    assert tried.count((wins, "learned")) == 2 * EXPLORE - 2
    assert tried.count((not wins, "explored")) == 2


def test_one_way_alone_decides_nothing():
    crossover = Crossover()
    for _ in range(100):
        crossover.learn(500, 0.1, local=True)
    assert crossover.choose(500, streamed=False) == (False, "unknown")


def test_longer_prompts_than_one_that_gains_are_not_tried_locally():
    crossover = Crossover()
    teach(crossover, 200, 0.3, 0.2)
    assert set(choices(crossover, 300, 2 * EXPLORE)) == {(False, "long")}
    assert (True, "explored") in choices(crossover, 100, 2 * EXPLORE)


def test_very_long_prompts_are_always_handed_over():
    crossover = Crossover()
    teach(crossover, 2 * LONGEST_TOKENS, 0.1, 0.9)
    assert set(choices(crossover, 2 * LONGEST_TOKENS, 2 * EXPLORE)) == {(False, "long")}


def test_the_crossover_is_above_the_longest_prompts_that_local_wins():
    crossover = Crossover()
    assert crossover.tokens == 0
    teach(crossover, 10, 0.1, 0.2)
    assert crossover.tokens == 64
    teach(crossover, 200, 0.1, 0.2)
    teach(crossover, 300, 0.3, 0.2)
    assert crossover.tokens == 256


def test_a_decision_follows_a_change():
    crossover = Crossover()
    teach(crossover, 500, 0.1, 0.2)
    teach(crossover, 500, 0.9, 0.2, times=4)
    assert crossover.choose(500, streamed=False) == (False, "learned")
