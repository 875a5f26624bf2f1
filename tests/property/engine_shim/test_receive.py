"""Landings commute: any order, any repeats, any strangers between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_shim.core.receive import Landing, ReceiveCounter
from router.contract.ids import Epoch
from router.contract.tags import OPEN, Tag

DIGEST = bytes(16)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[Tag], int]:
    totals = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    promised = [
        Tag(DIGEST, Epoch(3), writer, len(totals), seq, total if closed or seq == total - 1 else OPEN)
        for writer, total in enumerate(totals)
        for closed in [draw(st.booleans())]
        for seq in range(total)
    ]
    again = draw(st.lists(st.sampled_from(promised), max_size=10))
    stale = [Tag(b"x" * 16, Epoch(3), 0, 1, 0, 1), Tag(DIGEST, Epoch(2), 0, 1, 0, 1)]
    strangers = draw(st.lists(st.sampled_from(stale), max_size=5))
    return draw(st.permutations(promised + again + strangers)), len(promised)


@given(arrivals())
def test_ready_exactly_once_and_only_when_complete(case: tuple[list[Tag], int]) -> None:
    tags, num_promised = case
    counter = ReceiveCounter(DIGEST, Epoch(3))
    seen: set[tuple[int, int]] = set()
    for tag in tags:
        landing = counter.land(tag)
        if tag.digest != DIGEST or tag.writer_epoch != 3:
            assert landing is Landing.STALE
            continue
        known = (tag.writer, tag.seq) in seen
        seen.add((tag.writer, tag.seq))
        want = Landing.REPEATED if known else Landing.READY if len(seen) == num_promised else Landing.COUNTED
        assert landing is want
    assert counter.ready


def test_writers_that_disagree_are_a_fault() -> None:
    counter = ReceiveCounter(DIGEST, Epoch(1))
    assert counter.land(Tag(DIGEST, Epoch(1), 0, 2, 0, 2)) is Landing.COUNTED
    assert counter.land(Tag(DIGEST, Epoch(1), 1, 3, 0, 1)) is Landing.FAULT
    assert counter.land(Tag(DIGEST, Epoch(1), 0, 2, 1, 4)) is Landing.FAULT
    assert not counter.ready


@pytest.mark.parametrize(
    ("known", "comes"),
    [
        ((3, 4), (4, OPEN)),
        ((3, 4), (3, OPEN)),
        ((3, 4), (5, 6)),
        ((3, OPEN), (3, 4)),
        ((3, OPEN), (2, 3)),
        ((3, OPEN), (0, 4)),
        ((2, OPEN), (1, 2)),
    ],
)
def test_tags_that_cannot_all_be_true_are_a_fault_in_either_order(
    known: tuple[int, int], comes: tuple[int, int]
) -> None:
    """Seq and total: of a total, of what lies beyond it, or of a last WRITE after which more were promised."""
    for first, second in ((known, comes), (comes, known)):
        counter = ReceiveCounter(DIGEST, Epoch(1))
        assert counter.land(Tag(DIGEST, Epoch(1), 0, 1, *first)) is Landing.COUNTED
        assert counter.land(Tag(DIGEST, Epoch(1), 0, 1, *second)) is Landing.FAULT
        assert not counter.ready


def test_open_tags_alone_are_never_ready() -> None:
    counter = ReceiveCounter(DIGEST, Epoch(1))
    assert {counter.land(Tag(DIGEST, Epoch(1), 0, 1, seq, OPEN)) for seq in (2, 0, 1)} == {Landing.COUNTED}
    assert not counter.ready
    assert counter.land(Tag(DIGEST, Epoch(1), 0, 1, 3, 4)) is Landing.READY
    assert counter.land(Tag(DIGEST, Epoch(1), 0, 1, 3, 4)) is Landing.REPEATED
