"""What staged copies do when somebody stops, dies, lies or is busy, at each step."""

import numpy as np
import pytest

from engine_shim.core.copy_costs import Path
from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.port import CopyOrder, CopyState, PeerName
from engine_shim.fabric.stage_notes import StageNote, Word, read_stage_note
from router.contract.errors import PeerGone, TransferFailed
from router.contract.seal import Seal
from tests.support.staged_pairs import SLOT, StagedAgent, loopback_pair, turns

SIZE = 16 * SLOT
FULL = (4, 4)


def plan(chunks: int = 1, first: int = 0) -> TransferPlan:
    """Every second KiB, enough of them for so many slots."""
    count = chunks * 7
    return TransferPlan(tuple(Span(first + 2048 * k, first + 1024 * k, 1024) for k in range(count)))


@pytest.fixture
def pair() -> tuple[StagedAgent, StagedAgent]:
    p, d = loopback_pair(SIZE)
    p.memory[:] = np.arange(SIZE, dtype=np.uint64).astype(np.uint8) | 1
    return p, d


Pair = tuple[StagedAgent, StagedAgent]


def arrived(p: StagedAgent, d: StagedAgent, what: TransferPlan) -> bool:
    return all(
        (
            d.memory[s.dst_offset : s.dst_offset + s.num_bytes] == p.memory[s.src_offset : s.src_offset + s.num_bytes]
        ).all()
        for s in what.spans
    )


def test_a_copy_of_more_chunks_than_slots_passes_through_them(pair: Pair) -> None:
    p, d = pair
    what = plan(chunks=9)
    key = p.write(d, what)
    turns(p, d)
    assert p.states[key] is CopyState.DONE
    assert arrived(p, d, what)
    assert d.notices == [b"tag"]
    assert p.free_slots == d.free_slots == FULL


def test_copies_that_find_no_slot_at_the_target_go_direct_and_arrive(pair: Pair) -> None:
    p, d = pair
    taken = [d.ring.incoming.take() for _ in range(4)]
    key = p.write(d, plan(3))
    turns(p, d)
    assert p.states[key] is CopyState.DONE
    assert arrived(p, d, plan(3))
    assert d.notices == [b"tag"]
    assert None not in taken
    assert p.free_slots == (4, 4)


def test_copies_that_find_no_slot_here_go_direct(pair: Pair) -> None:
    p, d = pair
    for _ in range(4):
        p.ring.outgoing.take()
    key = p.write(d, plan())
    turns(p, d)
    assert (p.states[key], d.notices) == (CopyState.DONE, [b"tag"])
    assert arrived(p, d, plan())


def test_a_target_that_stands_still_keeps_the_copy_open_and_leaves_others_their_turn(pair: Pair) -> None:
    p, d = pair
    stuck = p.write(d, plan(9))
    for _ in range(100):
        p.turn()
    assert p.states[stuck] is CopyState.BUSY
    other = p.write(d, plan(), b"other")
    turns(p, d)
    assert {p.states[stuck], p.states[other]} == {CopyState.DONE}
    assert sorted(d.notices) == [b"other", b"tag"]


@pytest.mark.parametrize("steps", range(8))
def test_a_target_that_dies_at_any_step_fails_the_copy_and_frees_every_slot_of_the_mover(
    pair: Pair, steps: int
) -> None:
    p, d = pair
    key = p.write(d, plan(9))
    for _ in range(steps):
        d.turn()
        p.turn()
    was_over = p.states[key] is CopyState.DONE
    p.fabric.drop_peer(PeerName(d.name))
    turns(p, count=150)
    assert p.states[key] is (CopyState.DONE if was_over else CopyState.FAILED)
    assert p.free_slots[0] == 4
    assert not p.fabric._passages and not p.fabric._timed


@pytest.mark.parametrize("steps", range(8))
def test_a_mover_that_dies_at_any_step_lands_nothing_after_the_drop_and_its_slots_rest(pair: Pair, steps: int) -> None:
    p, d = pair
    key = p.write(d, plan(9))
    for _ in range(steps):
        p.turn()
        d.turn()
    d.fabric.drop_peer(PeerName(p.name))
    before, told = d.memory.copy(), list(d.notices)
    lent = 4 - d.free_slots[1]
    turns(p, d, count=20)
    assert (d.memory == before).all()
    assert d.notices == told
    assert d.free_slots[1] == 4 - lent, "slots were handed out while their writer might still write"
    turns(d, count=100)
    assert d.free_slots[1] == 4
    assert told == [b"tag"] or p.states[key] is CopyState.BUSY


@pytest.mark.parametrize("at", range(3))
def test_a_write_that_fails_ends_the_copy_only_when_what_landed_is_scattered(
    pair: Pair, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, d = pair
    posted = 0
    post = p.inner.post

    def failing(order: CopyOrder) -> CopyState:
        nonlocal posted
        posted += 1
        if posted == at + 1:
            raise TransferFailed("cut")
        return post(order)

    monkeypatch.setattr(p.inner, "post", failing)
    key = p.write(d, plan(5))
    for _ in range(200):
        p.turn()
        if p.states[key] is not CopyState.BUSY:
            break
        d.turn()
    assert p.states[key] is CopyState.FAILED
    after_failure = d.memory.copy()
    turns(p, d, count=20)
    assert (d.memory == after_failure).all(), "something landed after FAILED"
    assert d.notices == []
    assert d.free_slots[1] < 4, "lent slots must rest first"
    turns(p, d, count=150)
    assert p.free_slots == d.free_slots == FULL


def test_a_peer_that_cannot_be_asked_fails_the_post_and_leaves_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, d = pair

    def gone(*_: object) -> None:
        raise PeerGone("gone")

    monkeypatch.setattr(p.inner, "notify", gone)
    with pytest.raises(PeerGone):
        p.write(d, plan())
    assert p.free_slots == FULL
    assert not p.fabric._passages and not p.fabric._timed


def test_an_answer_that_could_not_be_sent_is_sent_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    p, d = pair
    notify = d.inner.notify

    def gone(*_: object) -> None:
        raise PeerGone("gone")

    monkeypatch.setattr(d.inner, "notify", gone)
    key = p.write(d, plan())
    turns(p, d)
    assert p.states[key] is CopyState.BUSY
    monkeypatch.setattr(d.inner, "notify", notify)
    turns(p, d)
    assert p.states[key] is CopyState.DONE


def test_notes_that_are_sealed_with_another_key_move_nothing() -> None:
    p, d = loopback_pair(SIZE, seals=(Seal("a" * 32), Seal("b" * 32)))
    p.memory[:] = 7
    key = p.write(d, plan())
    turns(p, d)
    assert p.states[key] is CopyState.BUSY
    assert not d.memory.any()
    assert d.fabric.num_refused == 1


def test_a_note_is_for_one_pair_and_one_direction() -> None:
    a, b, c = PeerName("a"), PeerName("b"), PeerName("c")
    seal, note = Seal("k" * 32), StageNote(Word.LANDED, 3, 4, 5, 6, 7, 8, b"tag")
    raw = note.encode(seal, a, b)
    assert read_stage_note(raw, seal, a, b) == note
    for sender, receiver in ((a, c), (c, b), (b, a)):
        assert read_stage_note(raw, seal, sender, receiver) is None
    assert read_stage_note(raw[:10], seal, a, b) is None


@pytest.mark.parametrize(
    "lie",
    [
        StageNote(Word.LANDED, 1, slot=0, num_chunks=1, num_rows=1, granule_bytes=64),
        StageNote(Word.LANDED, 1, slot=7, num_chunks=1, num_rows=1000, granule_bytes=1024),
        StageNote(Word.LANDED, 1, slot=7, num_chunks=1, num_rows=1, granule_bytes=96),
        StageNote(Word.LANDED, 1, slot=7, chunk=9, num_chunks=1, num_rows=1, granule_bytes=64),
        StageNote(Word.LANDED, 2, slot=7, num_chunks=1, num_rows=1, granule_bytes=64),
    ],
)
def test_a_landing_that_fits_no_loan_is_ignored(pair: Pair, lie: StageNote) -> None:
    p, d = pair
    p.fabric._tell(PeerName(d.name), StageNote(Word.ASK, 1, num_chunks=1))
    turns(d, count=2)
    assert d.free_slots[1] == 3
    p.fabric._tell(PeerName(d.name), lie)
    turns(d, count=5)
    assert not d.memory.any()
    assert d.free_slots[1] == 3


def test_granules_outside_the_cache_go_nowhere(pair: Pair) -> None:
    _, d = pair
    slot = d.ring.offset(7)
    ring = d.ring.copier._ring  # type: ignore[attr-defined]
    ring[slot : slot + 3 * 1024] = 9
    ring[slot + 3 * 1024 : slot + 3 * 1024 + 12].view(np.int32)[:] = (-1, 5, SIZE // 1024)
    d.ring.copier.scatter(3, 1024, slot)
    assert np.flatnonzero(d.memory).tolist() == list(range(5 * 1024, 6 * 1024))


def test_left_to_itself_it_takes_the_cheaper_path(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    p, d = pair
    p.fabric.force = None
    for wanted, staged in ((Path.DIRECT, 0), (Path.STAGED, 1)):
        monkeypatch.setattr("engine_shim.core.copy_costs.PairCosts.choose", lambda *_, answer=wanted: answer)
        key = p.write(d, plan())
        assert len(p.fabric._passages) == staged
        turns(p, d)
        assert p.states[key] is CopyState.DONE


def test_a_span_outside_the_cache_is_refused(pair: Pair) -> None:
    p, d = pair
    with pytest.raises(TransferFailed):
        p.write(d, TransferPlan((Span(0, 0, 1024), Span(SIZE, 1024, 1024))))
    assert p.free_slots == FULL
