"""Both desks together, over thousands of seeded fates."""

import random

import pytest

from tests.support.rendezvous_world import World, random_plot


def play(seed: int, **switches: object) -> World:
    world = World(seed, **switches)  # type: ignore[arg-type]
    rng = random.Random(seed)
    for index in range(rng.randint(1, 6)):
        world.add(random_plot(rng, index))
    world.run()
    return world


def assert_sound(world: World) -> None:
    assert world.violations == []
    assert world.prefill.num_open == 0, "prefill holds a ticket at the end"
    assert world.decode.num_open == 0, "decode holds a ticket at the end"
    assert world.kv_pinned == set()
    assert world.seats_pinned == set()
    for tid, plot in world.plots.items():
        ends = [
            tid in world.ready,
            tid in world.failed,
            tid in world.left,
            plot.cached and tid not in world.left | world.failed.keys(),
        ]
        assert sum(ends) == 1, f"{tid} reached {sum(ends)} ends: {plot}"
        assert world.ready.get(tid, 0) <= 1


@pytest.mark.parametrize("block", range(20))
def test_every_fate_ends_once_and_nothing_is_held(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        assert_sound(play(seed))


def test_lost_notices_are_said_again() -> None:
    for seed in range(500):
        assert_sound(play(seed, loss=0.3))


def test_without_quarantine_seats_are_freed_under_a_copy() -> None:
    """Ablation: the world notices when decode frees its seats at once instead of waiting for Stopped."""
    found = [v for seed in range(300) for v in play(seed, quarantine=False).violations]
    assert any("freed" in violation for violation in found)
