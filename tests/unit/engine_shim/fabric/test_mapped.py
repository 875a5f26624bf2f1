"""Copies by one kernel into a peer's cache: ends, drops and peers out of reach."""

import numpy as np
import pytest

from engine_shim.core.copy_costs import LEARN_FROM, Path
from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.copier import HostColumns
from engine_shim.fabric.mapping import open_mapper
from engine_shim.fabric.port import CopyOp, CopyState, PeerName
from engine_shim.fabric.ring import RingCard, split_card
from router.contract.errors import PeerGone, TransferFailed
from router.contract.kv import Region
from tests.support.host_mapper import HostMapper
from tests.support.staged_pairs import StagedAgent, loopback_pair, meet, turns

SIZE = 1 << 16
PLAN = TransferPlan(tuple(Span(2048 * k, 1024 * k, 1024) for k in range(20)))
Pair = tuple[StagedAgent, StagedAgent]


class SlowJob:
    """A kernel that runs until somebody waits for it or it is let end."""

    def __init__(self, end: bool = False) -> None:
        self.ended = end

    def done(self) -> bool:
        return self.ended

    def wait(self) -> None:
        self.ended = True


@pytest.fixture
def pair() -> Pair:
    p, d = loopback_pair(SIZE, path=Path.MAPPED)
    p.memory[:] = np.arange(SIZE, dtype=np.uint64).astype(np.uint8) | 1
    return p, d


def test_a_copy_needs_no_turn_of_its_target_and_no_slot(pair: Pair) -> None:
    p, d = pair
    key = p.write(d, PLAN)
    p.turn()
    assert p.states[key] is CopyState.DONE
    assert all((d.memory[1024 * k : 1024 * k + 1024] == p.memory[2048 * k : 2048 * k + 1024]).all() for k in range(20))
    assert not d.memory[20 * 1024 :].any()
    d.turn()
    assert d.notices == [b"tag"]
    assert p.fabric._mapped is not None
    assert not p.fabric._mapped._moves


def test_a_read_brings_the_peer_s_pieces_and_needs_no_turn_of_it(pair: Pair) -> None:
    p, d = pair
    key = d.copy(p, PLAN, CopyOp.READ)
    d.turn()
    assert d.states[key] is CopyState.DONE
    assert all((d.memory[1024 * k : 1024 * k + 1024] == p.memory[2048 * k : 2048 * k + 1024]).all() for k in range(20))
    assert not d.memory[20 * 1024 :].any()
    assert d.fabric._mapped is not None


def test_a_read_beyond_either_cache_is_refused(pair: Pair) -> None:
    p, d = pair
    for span in (Span(SIZE - 512, 0, 1024), Span(0, SIZE - 512, 1024)):
        with pytest.raises(TransferFailed, match="outside"):
            d.copy(p, TransferPlan((span,)), CopyOp.READ)


def test_reads_and_writes_are_priced_apart(pair: Pair) -> None:
    p, d = pair
    p.fabric.force = None
    for _ in range(2):
        key = p.copy(d, PLAN, CopyOp.READ)
        turns(p, d, count=5)
        assert p.states[key] is CopyState.DONE
    costs = p.fabric._pair(PeerName(d.name))
    assert sum(cost.num_seen for cost in costs[CopyOp.READ].paths.values()) == 2
    assert sum(cost.num_seen for cost in costs[CopyOp.WRITE].paths.values()) == 0


def test_every_path_that_is_taken_teaches_its_price(pair: Pair) -> None:
    """A path that never did would be the least known one for ever, and so be taken for ever."""
    p, d = pair
    p.fabric.force = None
    for _ in range(3 * LEARN_FROM):
        key = p.write(d, PLAN)
        for _ in range(12):
            turns(p, d, count=1)
            # The WRITE is seen to end before the peer's answer is read, as on a wire.
            if p.states[key] is CopyState.BUSY:
                p.fabric.poll(key)
        assert p.states[key] is CopyState.DONE
    seen = {path: cost.num_seen for path, cost in p.fabric._pair(PeerName(d.name))[CopyOp.WRITE].paths.items()}
    assert seen == dict.fromkeys(Path, LEARN_FROM)


def test_the_tag_waits_for_the_kernel_and_a_drop_waits_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    p, d = pair
    job = SlowJob()
    monkeypatch.setattr(HostColumns, "move", lambda *_: job)
    key = p.write(d, PLAN)
    turns(p, d, count=5)
    assert (p.states[key], d.notices) == (CopyState.BUSY, [])
    p.fabric.drop_peer(PeerName(d.name))
    assert job.ended, "a peer was dropped under a running kernel"
    turns(p, d, count=2)
    assert (p.states[key], d.notices) == (CopyState.FAILED, [])
    assert isinstance(p.mapper, HostMapper)
    assert p.mapper.opened == []
    with pytest.raises(PeerGone):
        p.write(d, PLAN)


def test_a_tag_that_cannot_be_sent_fails_the_copy(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    p, d = pair
    key = p.write(d, PLAN)

    def gone(*_: object) -> None:
        raise PeerGone("gone")

    monkeypatch.setattr(p.inner, "notify", gone)
    p.turn()
    assert p.states[key] is CopyState.FAILED


def test_a_span_outside_either_cache_is_refused_before_anything_moves(pair: Pair) -> None:
    p, d = pair
    for span in (Span(SIZE, 1024, 1024), Span(1024, SIZE, 1024)):
        with pytest.raises(TransferFailed):
            p.write(d, TransferPlan((Span(0, 0, 1024), span)))
    assert not d.memory.any()


def test_a_peer_out_of_reach_is_served_the_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMapper, "open", lambda *_: None)
    p, d = loopback_pair(SIZE, path=Path.MAPPED)
    p.memory[:] = 3
    key = p.write(d, PLAN)
    turns(p, d)
    assert (p.states[key], d.notices) == (CopyState.DONE, [b"tag"])
    assert (d.memory[: 20 * 1024] == 3).all()


def test_meeting_again_opens_a_cache_once(pair: Pair) -> None:
    p, d = pair
    meet(p, d)
    assert isinstance(p.mapper, HostMapper)
    assert p.mapper.opened == [d.region.base]


def test_a_ring_card_carries_the_mapping_and_leaves_the_metadata_whole() -> None:
    card = RingCard(Region(4096, 1 << 20, "cuda", 1), 8192, b"how")
    assert split_card(card.encode() + b"rest") == (card, b"rest")


def test_host_memory_has_no_mapper() -> None:
    assert open_mapper(Region(4096, 4096, "cpu")) is None
