from __future__ import annotations

import pytest

from router.bench.compare import hand_over_figures, set_ups_of
from router.bench.stories import hand_over_ms, in_order, typical
from router.cli.setup import SetUp, engine_programs
from router.contract.ids import Attempt
from router.contract.ledger import StoryLine


def story(*lines: tuple[str, float]) -> tuple[StoryLine, ...]:
    return tuple(StoryLine(0.0, Attempt(1), "w", stage, "", posted_s=posted_s) for stage, posted_s in lines)


def test_a_hand_over_lasts_from_the_last_kv_to_kv_ready_on_one_clock():
    assert hand_over_ms(story(("opened", 1.0), ("computed", 2.0), ("kv_ready", 2.003))) == pytest.approx(3.0)
    assert hand_over_ms(story(("opened", 1.0), ("computed", 2.0))) is None
    assert hand_over_ms(()) is None


def test_stories_are_ordered_by_their_beginning_and_the_typical_one_is_in_the_middle():
    short, middle, long = (story(("opened", 5.0 - end), ("served", 5.0)) for end in (1.0, 2.0, 4.0))
    assert in_order([short, (), long, middle]) == [long, middle, short]
    assert typical([long, short, middle]) == middle
    assert typical([]) == ()


def test_figures_of_hand_overs():
    assert hand_over_figures([]) == {}
    assert hand_over_figures([3.0, 1.0, 2.0]) == {"hand_over_p50_ms": 2.0, "hand_over_p99_ms": 3.0}


def test_pull_posts_between_steps_and_pull_offloop_does_not():
    set_ups = set_ups_of("pull,pull-offloop", SetUp())
    flags = {name: engine_programs(one, "")[0].argv for name, one in set_ups.items()}
    assert [name for name, argv in flags.items() if "--post-between-steps" in argv] == ["pull"]
    assert {one.mode.value for one in set_ups.values()} == {"pull"}
