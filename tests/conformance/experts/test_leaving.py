"""Ranks that leave, that are stopped for a while, and that are lost: processes over NIXL in host memory."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

from engine_shim.bench.expert_processes import Crew, crew_of
from engine_shim.experts.fabric_transport import FabricTransport, region_of, take_memory
from engine_shim.experts.group import ExpertGroup, Waiting
from engine_shim.experts.regions import plan_regions
from engine_shim.experts.shape import ExpertShape, RowFormat
from engine_shim.fabric.nixl import NixlFabric
from tests.support.expert_leaving import go_on_without, leave, step_for, take_step

pytestmark = [pytest.mark.needs("nixl"), pytest.mark.timeout(300)]

Result = TypeVar("Result")
LONG_S, SHORT_S = 60.0, 1.5


def shape_of(num_ranks: int) -> ExpertShape:
    f32 = RowFormat.F32
    return ExpertShape(num_ranks, 2 * num_ranks, num_ranks, 16, 4, dispatch_format=f32, combine_format=f32)


@pytest.mark.parametrize(
    "at", ["between steps", "rows sent", "rows received", "answers sent", "a later flight is refused"]
)
def test_who_leaves_is_not_waited_for(at: str) -> None:
    with crew_of(plan_regions(shape_of(3)), leave, wait_for_s=LONG_S) as crew:
        for link in crew.links:
            link.send(at)
        left_at = crew.receive(1, 30)
        for rank in (0, 2):
            told_at, sentence = crew.receive(rank, 30)
            assert "rank 1 takes no part any more" in sentence
            assert told_at - left_at < 5, "long before the deadline"


def two_ranks_here(name: str, num_ranks: int = 2) -> list[ExpertGroup]:
    """Ranks 0 and 1 of a group, in this process, each with an agent of its own."""
    regions, transports = plan_regions(shape_of(num_ranks)), []
    for rank in range(2):
        memory = take_memory(regions)
        fabric = NixlFabric(f"{name}-{rank}", region_of(memory))
        transports.append(FabricTransport(fabric, memory, regions, rank))
    cards = {rank: transport.card() for rank, transport in enumerate(transports)}
    at_once([partial(one.connect, cards) for one in transports])
    return [ExpertGroup.over(one, regions, rank, Waiting(LONG_S)) for rank, one in enumerate(transports)]


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [done.result(LONG_S) for done in [pool.submit(call) for call in calls]]


def test_groups_come_and_go_and_two_of_them_live_side_by_side() -> None:
    held: list[int] = []
    for number in range(10):
        groups = [*two_ranks_here(f"one-{number}"), *two_ranks_here(f"other-{number}")]
        assert at_once([partial(take_step, group) for group in groups]) == [2.0] * 4
        for group in groups:
            group.close()
        del group, groups
        gc.collect()
        held.append(len(os.listdir("/proc/self/fd")))
    assert held[-1] <= held[0]


def test_a_new_group_can_begin_without_ranks_that_are_lost() -> None:
    groups = two_ranks_here("left", num_ranks=3)
    for group in groups:
        group.mask(frozenset({2}))
    assert at_once([partial(take_step, group) for group in groups]) == [2.0] * 2
    for group in groups:
        group.close()


def stop(crew: Crew, rank: int, for_s: float) -> float:
    """When it was stopped; it goes on again."""
    pid = crew.processes[rank].pid or 0
    os.kill(pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    time.sleep(for_s)
    os.kill(pid, signal.SIGCONT)
    return stopped_at


def test_a_rank_that_is_stopped_for_five_seconds_is_waited_for() -> None:
    with crew_of(plan_regions(shape_of(3)), step_for, wait_for_s=LONG_S) as crew:
        for link in crew.links:
            link.send(6.0)
        assert [crew.receive(rank, 30) for rank in range(3)] == ["here"] * 3
        stop(crew, 1, 5.0)
        assert [crew.receive(rank, 60) for rank in range(3)] == ["right"] * 3


def test_a_rank_that_is_stopped_for_longer_than_the_others_wait_is_named_and_learns_of_it() -> None:
    with crew_of(plan_regions(shape_of(3)), step_for, wait_for_s=SHORT_S) as crew:
        for link in crew.links:
            link.send(60.0)
        assert [crew.receive(rank, 30) for rank in range(3)] == ["here"] * 3
        stopped_at = stop(crew, 1, 3.0)
        told = [crew.receive(rank, 30) for rank in range(3)]
    assert all("rank 1" in sentence for _, sentence in told)
    assert all(told[rank][0] - stopped_at < SHORT_S + 1 for rank in (0, 2))


def test_the_rest_goes_on_without_ranks_that_are_killed() -> None:
    lost = frozenset({1, 3})
    with crew_of(plan_regions(shape_of(4)), go_on_without, wait_for_s=LONG_S) as crew:
        assert [crew.receive(rank, 30) for rank in range(4)] == [4.0] * 4
        for rank in lost:
            crew.processes[rank].kill()
            crew.processes[rank].join()
        for rank in (0, 2):
            crew.links[rank].send(lost)
        assert [crew.receive(rank, 30) for rank in (0, 2)] == [[2.0] * 10] * 2
