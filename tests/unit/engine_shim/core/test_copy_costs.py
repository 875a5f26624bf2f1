from engine_shim.core.copy_costs import FACTOR_MOST, PRICES, PairCosts, Path, Price

MS = 1e-3
SIMPLE = {Path.DIRECT: Price(0.0, 10e-6, 1e-9), Path.STAGED: Price(1 * MS, 0.0, 2e-9)}


def test_many_pieces_are_staged_and_few_are_not() -> None:
    pair = PairCosts(SIMPLE)
    assert pair.choose(spans=10, granules=10, num_bytes=100_000) is Path.DIRECT
    assert pair.choose(spans=1000, granules=1000, num_bytes=100_000) is Path.STAGED
    assert pair.choose(spans=1000, granules=1000, num_bytes=100_000_000) is Path.DIRECT


def test_equal_prices_go_direct() -> None:
    same = Price(1 * MS, 0.0, 0.0)
    assert PairCosts({Path.DIRECT: same, Path.STAGED: same}).choose(5, 5, 5) is Path.DIRECT


def test_a_pair_whose_staging_is_slow_learns_to_go_direct_and_forgets_it_again() -> None:
    pair = PairCosts(SIMPLE)
    for _ in range(20):
        pair.learn(Path.STAGED, 1000, 100_000, took_s=1.0)
    assert pair.choose(700, 700, 100_000) is Path.DIRECT
    for _ in range(300):
        pair.learn(Path.DIRECT, 700, 100_000, took_s=pair.prices[Path.DIRECT].of(700, 100_000))
    assert pair.choose(700, 700, 100_000) is Path.STAGED


def test_one_wild_time_moves_a_factor_by_no_more_than_its_share() -> None:
    pair = PairCosts(SIMPLE)
    pair.learn(Path.DIRECT, 10, 100, took_s=3600.0)
    assert pair.factors[Path.DIRECT] <= 1 + 0.2 * (FACTOR_MOST - 1)


def test_every_kind_of_memory_has_prices_and_gpus_stage_what_is_fragmented() -> None:
    assert set(PRICES) == {"cpu", "cuda"}
    pair = PairCosts(PRICES["cuda"])
    assert pair.choose(spans=2048, granules=8192, num_bytes=128 << 20) is Path.STAGED
    assert pair.choose(spans=1, granules=8192, num_bytes=128 << 20) is Path.DIRECT
