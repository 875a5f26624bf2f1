from __future__ import annotations

import pytest

from engine_shim.engine.reference.block_pool import BlockPool


def names(count: int, family: str = "a") -> list[bytes]:
    return [f"{family}{index}".encode() for index in range(count)]


@pytest.fixture
def pool():
    return BlockPool(8)


def fill(pool: BlockPool, count: int, family: str = "a") -> list[int]:
    """Blocks with content that the cache knows, still owned."""
    blocks = pool.allocate(count)
    for block, name in zip(blocks, names(count, family), strict=True):
        pool.remember(block, name)
    return blocks


def test_a_block_without_references_is_available_again(pool):
    blocks = pool.allocate(3)
    pool.share(blocks[:1])
    pool.release(blocks)
    assert pool.num_available == 7
    pool.release(blocks[:1])
    assert pool.num_available == 8


def test_known_content_is_found_after_its_release_and_shared(pool):
    blocks = fill(pool, 3)
    pool.release(blocks)
    assert pool.num_available == 8
    assert pool.cached_prefix([*names(3), b"other"]) == blocks
    assert pool.cached_prefix([b"other", *names(3)]) == []
    assert pool.num_idle(blocks) == 3
    pool.share(blocks[:2])
    assert (pool.num_available, pool.num_idle(blocks)) == (6, 1)


def test_cached_blocks_are_given_up_last_and_the_oldest_tail_first(pool):
    old, young = fill(pool, 3, "old"), fill(pool, 2, "young")
    pool.release(old)
    pool.release(young)
    assert set(pool.allocate(3)) == {5, 6, 7}
    pool.allocate(1)
    assert pool.cached_prefix(names(3, "old")) == old[:2]
    assert pool.cached_prefix(names(2, "young")) == young


def test_pinned_blocks_outlive_their_owner(pool):
    blocks = fill(pool, 3)
    pool.pin(blocks)
    pool.release(blocks)
    assert (pool.num_available, pool.num_pinned) == (5, 3)
    pool.pin(blocks[:1])
    pool.unpin(blocks)
    assert (pool.num_available, pool.num_pinned) == (7, 1)
    pool.unpin(blocks[:1])
    assert (pool.num_available, pool.num_pinned) == (8, 0)


def test_the_first_block_of_a_name_stays_its_block(pool):
    (first,), (second,) = fill(pool, 1), pool.allocate(1)
    pool.remember(second, names(1)[0])
    pool.release([second])
    assert pool.cached_prefix(names(1)) == [first]
    assert pool.num_idle([second]) == 0


def test_without_a_prefix_cache_nothing_is_remembered():
    pool = BlockPool(2, prefix_cache=False)
    pool.release(fill(pool, 2))
    assert pool.cached_prefix(names(2)) == []


def test_idle_blocks_are_evicted_to_give_one_run():
    pool = BlockPool(8)
    tables = [fill(pool, 2, family) for family in "abcd"]
    for table in (tables[1], tables[3], tables[2], tables[0]):
        pool.release(table)
    # The oldest are 2, 3 and 6, 7; evicting 4, 5 as well makes 2..7 one run.
    assert pool.allocate(4) == [2, 3, 4, 5]
    assert pool.cached_prefix(names(2, "a")) == tables[0]
