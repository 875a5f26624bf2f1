import random

import pytest

from engine_shim.core.copy_costs import LEARN_FROM, LOOK_AGAIN_EVERY, PairCosts, Path, PathCost, Size

MS = 1e-3
TRUE = {
    Path.DIRECT: (0.1 * MS, 7e-6, 4e-12),
    Path.STAGED: (0.4 * MS, 4e-8, 8e-12),
    Path.MAPPED: (0.1 * MS, 5e-8, 5e-12),
}


def true_s(path: Path, size: Size) -> float:
    fixed, piece, byte = TRUE[path]
    return fixed + size.pieces * piece + size.num_bytes * byte


def sizes_of(spans: int, num_bytes: int, *paths: Path) -> dict[Path, Size]:
    granules = max(spans, num_bytes // 65536)
    return {path: Size(spans if path is Path.DIRECT else granules, num_bytes) for path in paths}


def live(pair: PairCosts, *paths: Path, count: int = 100, seed: int = 1) -> float:
    """A pair's life: copies of every size and fragmentation, timed with some noise.

    Returns how many times longer the second half of it took than with the cheapest path each time.
    """
    rng = random.Random(seed)
    paid = best = 0.0
    for number in range(count):
        spans = rng.choice((2, 8, 64, 512, 4096))
        sizes = sizes_of(spans, spans * rng.choice((4, 64, 1024)) * 1024, *paths)
        path = pair.choose(sizes)
        pair.learn(path, sizes[path], true_s(path, sizes[path]) * rng.uniform(0.9, 1.2))
        if number >= count // 2:
            paid += true_s(path, sizes[path])
            best += min(true_s(path, size) for path, size in sizes.items())
    return paid / best


@pytest.mark.parametrize("paths", [(Path.DIRECT, Path.STAGED), (Path.DIRECT, Path.STAGED, Path.MAPPED)])
@pytest.mark.parametrize("seed", range(5))
def test_a_pair_that_has_lived_pays_hardly_more_than_the_truly_cheapest_paths(
    paths: tuple[Path, ...], seed: int
) -> None:
    assert live(PairCosts(), *paths, seed=seed) < 1.3


def test_each_possible_path_is_tried_before_any_is_believed() -> None:
    pair, sizes = PairCosts(), sizes_of(9, 9 * 65536, Path.DIRECT, Path.STAGED)
    taken = []
    for _ in range(2 * LEARN_FROM):
        path = pair.choose(sizes)
        taken.append(path)
        pair.learn(path, sizes[path], 1 * MS)
    assert sorted(taken) == [Path.DIRECT] * LEARN_FROM + [Path.STAGED] * LEARN_FROM


def long_and_short() -> tuple[dict[Path, Size], dict[Path, Size]]:
    return sizes_of(1000, 4_300_000_000, *Path), sizes_of(9, 9 * 65536, *Path)


def test_where_a_kernel_can_do_it_a_long_copy_is_no_trial_of_the_direct_path() -> None:
    pair, (long, short) = PairCosts(), long_and_short()
    for _ in range(20):
        path = pair.choose(long)
        assert path is not Path.DIRECT
        pair.learn(path, long[path], 5 * MS)
    for _ in range(LEARN_FROM):
        assert pair.choose(short) is Path.DIRECT
        pair.learn(Path.DIRECT, short[Path.DIRECT], 1 * MS)


def test_a_direct_path_that_is_known_may_take_a_long_copy() -> None:
    pair, (long, _) = PairCosts(), long_and_short()
    for path, took_s in ((Path.DIRECT, 1 * MS), (Path.STAGED, 5 * MS), (Path.MAPPED, 5 * MS)):
        for _ in range(LEARN_FROM):
            pair.learn(path, long[path], took_s)
    assert pair.choose(long) is Path.DIRECT


def test_copies_of_one_piece_say_nothing_of_what_pieces_cost() -> None:
    pair, (long, _) = PairCosts(), long_and_short()
    for _ in range(50):
        pair.learn(Path.DIRECT, Size(1, 268_435_456), 1 * MS)
    for path in (Path.STAGED, Path.MAPPED):
        for _ in range(LEARN_FROM):
            pair.learn(path, long[path], 5 * MS)
    assert pair.choose(long) is not Path.DIRECT


def test_without_a_kernel_one_long_copy_tells_what_many_pieces_cost_on_a_path_that_is_known_for_few() -> None:
    pair, long = PairCosts(), sizes_of(1000, 4_300_000_000, Path.DIRECT, Path.STAGED)
    for path, pieces in ((Path.DIRECT, 1), (Path.STAGED, long[Path.STAGED].pieces)):
        for _ in range(LEARN_FROM):
            pair.learn(path, Size(pieces, 4_300_000_000), 5 * MS)
    assert pair.choose(long) is Path.DIRECT
    pair.learn(Path.DIRECT, long[Path.DIRECT], 500 * MS)
    assert pair.choose(long) is Path.STAGED


def test_where_no_kernel_reaches_the_peer_long_copies_try_the_direct_path_too() -> None:
    long = sizes_of(1000, 4_300_000_000, Path.DIRECT, Path.STAGED)
    assert PairCosts().choose(long) is Path.DIRECT


def test_equal_costs_go_by_the_order_of_the_paths() -> None:
    pair, sizes = PairCosts(), sizes_of(9, 9 * 65536, Path.DIRECT, Path.STAGED)
    for path in sizes:
        for _ in range(LEARN_FROM):
            pair.learn(path, Size(9, 9 * 65536), 1 * MS)
    assert pair.choose(sizes) is Path.DIRECT


def test_the_first_copy_of_a_path_tells_of_its_start_and_is_forgotten() -> None:
    cost = PathCost()
    cost.learn(Size(10, 1000), 2.0)
    for _ in range(3):
        cost.learn(Size(10, 1000), 1 * MS)
    assert cost.expect_s(Size(10, 1000)) == pytest.approx(1 * MS, rel=0.01)


def test_one_wild_time_moves_a_price_by_no_more_than_its_share_and_is_forgotten() -> None:
    cost = PathCost()
    for _ in range(40):
        cost.learn(Size(10, 1000), 1 * MS)
    cost.learn(Size(10, 1000), 3600.0)
    assert cost.expect_s(Size(10, 1000)) < 1.1 * MS
    for _ in range(100):
        cost.learn(Size(10, 1000), 1 * MS)
    assert cost.expect_s(Size(10, 1000)) == pytest.approx(1 * MS, rel=0.05)


def test_copies_after_a_pause_do_not_make_the_best_path_look_dear() -> None:
    """As timed on an H200: between series of copies the GPU is idle, and the next copy takes many times as long."""
    pair, sizes = PairCosts(), sizes_of(2048, 128 << 20, Path.DIRECT, Path.STAGED, Path.MAPPED)
    usual = {Path.DIRECT: 11 * MS, Path.STAGED: 1 * MS, Path.MAPPED: 0.4 * MS}
    for path, took_s in usual.items():
        for number in range(24):
            pair.learn(path, sizes[path], 30 * MS if number in (1, 23) else took_s)
    for number in range(20):
        path = pair.choose(sizes)
        assert path is Path.MAPPED
        pair.learn(path, sizes[path], 30 * MS if number in (0, 19) else usual[path])
    assert pair.choose(sizes) is Path.MAPPED


def test_no_size_has_a_negative_price() -> None:
    cost, rng = PathCost(), random.Random(3)
    for _ in range(50):
        cost.learn(Size(rng.randrange(1, 5000), rng.randrange(1, 1 << 28)), rng.uniform(0.1, 5) * MS)
    assert min(cost.price) >= 0.0
    assert cost.expect_s(Size(1, 1)) >= 0.0


def test_a_path_that_has_become_cheaper_is_found_again_unless_it_was_hopeless() -> None:
    for old_s, found in ((1.5 * MS, True), (90 * MS, False)):
        pair, sizes = PairCosts(), sizes_of(9, 9 * 65536, Path.DIRECT, Path.STAGED)
        for _ in range(LEARN_FROM):
            pair.learn(Path.DIRECT, sizes[Path.DIRECT], 1 * MS)
            pair.learn(Path.STAGED, sizes[Path.STAGED], old_s)
        taken = [pair.choose(sizes) for _ in range(LOOK_AGAIN_EVERY)]
        assert (Path.STAGED in taken) is found
        assert taken.count(Path.STAGED) <= 1


def test_a_new_pair_begins_with_what_the_others_have_taught_and_goes_its_own_way() -> None:
    taught = PairCosts()
    live(taught, Path.DIRECT, Path.STAGED)
    new = PairCosts(taught)
    sizes = sizes_of(4096, 4096 * 65536, Path.DIRECT, Path.STAGED)
    assert new.choose(sizes) is taught.choose(sizes) is Path.STAGED
    for _ in range(40):
        new.learn(Path.STAGED, sizes[Path.STAGED], 9.0)
    assert new.choose(sizes) is Path.DIRECT
    assert taught.choose(sizes) is Path.STAGED
