"""One seed is one history, whoever plays it and when."""

import pytest

from engine_shim.simulation.world import World


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_tells_the_same_story_twice(seed: int) -> None:
    first, second = World(seed).run(tells=True), World(seed).run(tells=True)
    assert first.story
    assert [str(line) for line in first.story] == [str(line) for line in second.story]
    assert first.counts == second.counts
