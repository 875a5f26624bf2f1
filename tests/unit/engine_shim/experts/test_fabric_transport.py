"""How ranks connect, over loopback."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Thread

import pytest

from engine_shim.experts.fabric_transport import FabricTransport, region_of, take_memory
from engine_shim.experts.port import Phase
from engine_shim.experts.regions import plan_regions
from engine_shim.experts.shape import ExpertShape
from engine_shim.experts.signal import Signal
from engine_shim.experts.transport import Put
from engine_shim.fabric.group import FabricGroup, Slice
from engine_shim.fabric.loopback import LoopbackFabric, LoopbackNetwork
from router.contract.errors import HandshakeFailed, RankGone

REGIONS = plan_regions(ExpertShape(3, 3, 1, 128, 4))


def three() -> list[FabricTransport]:
    network, transports = LoopbackNetwork(), []
    for rank in range(3):
        memory = take_memory(REGIONS).zero_()
        fabric = LoopbackFabric(f"rank-{rank}", region_of(memory), network)
        transports.append(FabricTransport(fabric, memory, REGIONS, rank))
    return transports


def test_what_a_quicker_rank_puts_while_others_connect_is_not_lost() -> None:
    first, second, third = ranks = three()
    cards = {rank: transport.card() for rank, transport in enumerate(ranks)}
    threads = [Thread(target=transport.connect, args=(cards,)) for transport in (first, second)]
    for thread in threads:
        thread.start()
    # The third says to the first alone that it is here, so the first goes on and the second still waits.
    third._group.connect({rank: card for rank, card in cards.items() if rank != 1})
    third._group.arrive()
    threads[0].join(30)
    first.scatter([Put(1, 0, 64, 16, Signal(1, Phase.COUNTS))])
    while first.busy:
        first.poll()
    while not second._early:
        assert threads[1].is_alive()
    third._group.connect(cards)
    third._group.arrive()
    threads[1].join(30)
    assert second.poll() == [(0, Signal(1, Phase.COUNTS))]


def test_a_rank_that_does_not_come_is_named() -> None:
    first, second, _third = ranks = three()
    cards = {rank: transport.card() for rank, transport in enumerate(ranks)}
    second._group.connect(cards)
    second._group.arrive()
    with pytest.raises(RankGone, match=r"\[2\] did not connect"):
        first.connect(cards, wait_for_s=0.05)


def test_a_rank_that_is_dead_already_is_not_waited_for() -> None:
    first, _second, _third = ranks = three()
    cards = {rank: transport.card() for rank, transport in enumerate(ranks)}
    first._group.gone.add(2)
    began = time.monotonic()
    with pytest.raises(RankGone, match=r"\[2\] did not connect"):
        first.connect(cards, wait_for_s=60.0)
    assert time.monotonic() - began < 10


def test_ranks_of_other_shapes_do_not_connect() -> None:
    first, _second, _third = ranks = three()
    cards = {rank: transport.card() for rank, transport in enumerate(ranks)}
    other = replace(cards[2].region, num_bytes=cards[2].region.num_bytes + 64)
    with pytest.raises(HandshakeFailed, match=r"Expert rank 2 has .* and rank 0 has .* the same shape"):
        first.connect(cards | {2: replace(cards[2], region=other)})


def test_notices_that_are_no_signals_are_nothing() -> None:
    first, second, _third = ranks = three()
    cards = {rank: transport.card() for rank, transport in enumerate(ranks)}
    second._group.connect(cards)
    first._group.connect(cards)
    second._group.scatter([Slice(0, 0, 0, 0, b"odd"), Slice(0, 0, 0, 0, Signal(1, Phase.COUNTS).encode())])
    assert first.poll() == [(1, Signal(1, Phase.COUNTS))]


def test_closing_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    first, _second, _third = three()
    monkeypatch.setattr(FabricGroup, "close", lambda group: closed.append(group.rank))
    first.close()
    first.close()
    assert closed == [0]
