import pytest

from engine_shim.bench.expert_scale import (
    PUBLISHED,
    RANKS,
    TO_BEAT,
    bytes_us,
    fit,
    forecast,
    report,
    rows_to_other_nodes,
)


@pytest.mark.parametrize(
    ("num_ranks", "dispatch", "combine"), [(16, 75.9, 146.8), (32, 113.8, 220.2), (64, 132.8, 256.9)]
)
def test_bytes_of_exact_rows(num_ranks: int, dispatch: float, combine: float) -> None:
    """Counted by hand: 128 tokens, 8 rows each but those that stay in the node, 50 GB/s."""
    assert bytes_us(num_ranks, "dispatch", "exact") == pytest.approx(dispatch, abs=0.1)
    assert bytes_us(num_ranks, "combine", "exact") == pytest.approx(combine, abs=0.1)


def test_two_nodes_get_each_token_almost_once() -> None:
    assert rows_to_other_nodes(16, "exact") == 4.0
    assert rows_to_other_nodes(16, "per node") == pytest.approx(0.997, abs=1e-3)
    for ranks in RANKS:
        assert (
            rows_to_other_nodes(ranks, "per node")
            < rows_to_other_nodes(ranks, "per rank")
            < rows_to_other_nodes(ranks, "exact")
        )


@pytest.mark.parametrize(("wire", "half"), PUBLISHED)
def test_the_fit_repeats_what_it_was_fitted_to(wire: str, half: str) -> None:
    one = fit(wire, half)
    for ranks, published in zip(RANKS, PUBLISHED[wire, half], strict=True):
        said = one.base_us + one.per_peer_us * (ranks - 8) + bytes_us(ranks, half, "exact")
        assert abs(said - published) <= one.worst_error_us + 1e-9
    assert one.worst_error_us < 15
    assert one.base_us > 0


def test_what_would_beat_it_is_said_of_every_size() -> None:
    text = report()
    for ranks, published in zip(RANKS, TO_BEAT["EFA"], strict=True):
        assert f"{published:.0f} µs are beaten" in text
        one = forecast("EFA", ranks, "per node")
        assert one.fixed_to_beat_us + one.bytes_us < published
