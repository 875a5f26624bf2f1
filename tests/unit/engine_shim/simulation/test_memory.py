"""The world's own view of blocks and copies."""

from engine_shim.simulation.memory import BlockPool, Copy, Memory
from router.contract.ids import TransferId

ONE, OTHER, TALK = TransferId("q1.1"), TransferId("q2.1"), TransferId("talk1")


def test_blocks_are_taken_whole_or_not_at_all() -> None:
    pool = BlockPool(3)
    assert len(pool.take(2, ONE) or ()) == 2
    assert pool.take(2, OTHER) is None
    assert pool.num_taken == 2


def test_the_block_freed_last_is_in_other_hands_first() -> None:
    pool = BlockPool(4)
    taken = pool.take(2, ONE)
    assert taken is not None
    pool.give(taken)
    assert pool.take(1, OTHER) == taken[-1:]


def test_a_block_that_is_given_twice_is_free_once() -> None:
    pool = BlockPool(1)
    taken = pool.take(1, ONE)
    assert taken is not None
    pool.give(taken)
    pool.give(taken)
    assert pool.take(1, ONE) is not None
    assert pool.take(1, OTHER) is None


def test_a_copy_touches_what_it_has_not_copied_yet() -> None:
    source, target, memory = BlockPool(8), BlockPool(8), Memory()
    copy = Copy(ONE, source, target, [(1, 5), (2, 6)])
    memory.live[copy] = None
    assert memory.reads(source, (2,)) is copy
    assert memory.writes(target, (5,)) is copy
    assert memory.reads(target, (1,)) is None
    copy.pieces.pop(0)
    assert memory.reads(source, (1,)) is None
    copy.source = None
    assert memory.reads(source, (2,)) is None
    assert memory.writes(target, (6,)) is copy


def remembered(pool: BlockPool, count: int) -> tuple[int, ...]:
    """So many blocks, taken, that hold the beginning of a talk."""
    taken = pool.take(count, ONE)
    assert taken is not None
    for index, block in enumerate(taken):
        pool.remember(block, (TALK, index))
    return taken


def test_what_is_remembered_is_found_until_its_block_is_in_other_hands() -> None:
    pool = BlockPool(4)
    taken = remembered(pool, 3)
    assert pool.find_cached(TALK, 3) == ()  # they belong to somebody
    pool.give(taken)
    assert pool.find_cached(TALK, 2) == taken[:2]
    pool.take_cached(taken[:1], OTHER)
    assert pool.owner == {taken[0]: OTHER}
    pool.give(taken[:1])
    assert pool.find_cached(TALK, 9) == taken


def test_what_is_cached_is_taken_last_and_forgotten_then() -> None:
    pool = BlockPool(3)
    taken = remembered(pool, 2)
    pool.give(taken)
    other = pool.take(2, OTHER)
    assert other is not None and other[0] not in taken
    assert pool.find_cached(TALK, 2) == tuple(block for block in taken[:1] if block not in other)
    pool.remember(other[0], (TALK, 0))
    pool.give(other)
    assert pool.find_cached(TALK, 1) == other[:1]  # the newest block of the same content
