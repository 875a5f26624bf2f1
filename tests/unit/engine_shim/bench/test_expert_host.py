import pytest

from engine_shim.bench.expert_host import (
    EXCHANGES,
    GOALS,
    HALVES,
    TOKENS,
    TWO_GPUS,
    Span,
    forecast,
    kernels_bytes_per_us,
    leaving_bytes,
    link,
    report,
    two_gpus_us,
    verdict,
)
from engine_shim.experts.shape import ExpertNumerics

EXACT, DEDUP = ExpertNumerics


@pytest.mark.parametrize(
    ("num_ranks", "numerics", "dispatch", "combine"),
    [(2, EXACT, 3.785, 7.340), (4, DEDUP, 2.565, 4.974), (8, EXACT, 6.623, 12.845), (8, DEDUP, 4.384, 8.502)],
)
def test_bytes_that_leave_a_rank(num_ranks: int, numerics: ExpertNumerics, dispatch: float, combine: float) -> None:
    """Megabytes at 128 tokens, counted by hand: 4, 2.711, 7 and 4.633 rows a token."""
    for half, megabytes in zip(HALVES, (dispatch, combine), strict=True):
        assert leaving_bytes(num_ranks, numerics, half, 128) / 1e6 == pytest.approx(megabytes, abs=0.001)


def test_the_link_repeats_the_exchanges_that_it_was_fitted_to() -> None:
    wire = link()
    for size, us in EXCHANGES:
        assert wire.base_us + size / wire.bytes_per_us == pytest.approx(us, abs=0.5)
    assert all(kernels_bytes_per_us(half) < wire.bytes_per_us for half in HALVES)


@pytest.mark.parametrize(("numerics", "tokens"), list(TWO_GPUS))
def test_two_gpus_take_at_most_what_they_took(numerics: ExpertNumerics, tokens: int) -> None:
    spans = [forecast(2, numerics, tokens, half) for half in HALVES]
    assert spans[0].most + spans[1].most == pytest.approx(TWO_GPUS[numerics, tokens][2])
    for half, span in zip(HALVES, spans, strict=True):
        assert span == Span(two_gpus_us(numerics, tokens, half), two_gpus_us(numerics, tokens, half))


def test_more_ranks_take_longer_and_bytes_alone_are_never_beaten() -> None:
    for numerics, tokens in TWO_GPUS:
        for half in HALVES:
            four, eight = (forecast(ranks, numerics, tokens, half) for ranks in (4, 8))
            assert four.least <= eight.least <= eight.most
            assert four.most <= eight.most
            assert eight.least >= leaving_bytes(8, numerics, half, tokens) / link().bytes_per_us


def test_a_goal_is_judged_by_both_ends() -> None:
    halves = (Span(10, 20), Span(30, 40))
    judged = [verdict(halves, goals) for goals in ((60.0,), (59.0,), (39.0,), (20.0, 40.0), (20.0, 39.0), (9.0, 99.0))]
    near = "when more is hidden"
    assert judged == ["within reach", near, "out of reach", "within reach", near, "out of reach"]


def test_every_goal_is_told_beside_what_is_published() -> None:
    text = report()
    for goals in GOALS.values():
        assert f"  {' + '.join(f'{goal:.0f}' for goal in goals)}: " in text
    assert len([line for line in text.splitlines() if line.startswith(("   4", "   8"))]) == 4 * len(TOKENS)
    assert "DeepEP" in text and "UCCL" in text
