"""Expert ranks as processes of their own, over NIXL, without an engine: for benchmarks and for tests.

A forkserver imports torch once and forks every rank. What a rank does is a function of its group and of the socket to
us; what it sends comes out of `receive`.
"""

from __future__ import annotations

import multiprocessing
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeAlias

import torch

from engine_shim.experts.fabric_transport import FabricTransport, region_of, take_memory
from engine_shim.experts.group import ExpertGroup, Waiting
from engine_shim.experts.regions import Regions
from engine_shim.fabric.nixl import NixlFabric
from router.contract.errors import RankGone

# Any: what a test or benchmark sends between itself and its ranks.
Link: TypeAlias = "Connection[Any, Any]"
Work = Callable[[ExpertGroup, Link], None]
"""A function of a module: it is named, not copied, when a rank starts."""

JOIN_FOR_S = 120.0


@dataclass(slots=True)
class Crew:
    """Running ranks."""

    links: list[Link] = field(default_factory=list)
    processes: list[ForkServerProcess] = field(default_factory=list)

    # Any: see Link.
    def receive(self, rank: int, wait_for_s: float) -> Any:  # noqa: ANN401
        """What the rank sends next. Raises RankGone when it ended, or says nothing for so long."""
        if not self.links[rank].poll(wait_for_s):
            raise RankGone(f"Rank {rank} says nothing for {wait_for_s:.0f} s; look at its output.")
        try:
            return self.links[rank].recv()
        except (EOFError, ConnectionResetError) as error:
            raise RankGone(f"Rank {rank} has ended; look at its output.") from error


@contextmanager
def crew_of(regions: Regions, work: Work, *, wait_for_s: float = 10.0, device: str = "cpu") -> Iterator[Crew]:
    """Ranks that do `work`, with memory on `device`, connected to each other; none is left after the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    crew, name = Crew(), uuid.uuid4().hex
    try:
        for rank in range(regions.shape.num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank, args=(regions, rank, name, Place(wait_for_s, device), work, theirs), daemon=True
            )
            process.start()
            theirs.close()
            crew.links.append(ours)
            crew.processes.append(process)
        cards = {rank: crew.receive(rank, JOIN_FOR_S) for rank in range(regions.shape.num_ranks)}
        for link in crew.links:
            link.send(cards)
        yield crew
    finally:
        for process in crew.processes:
            process.kill()
            process.join()


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks are, and how long they wait there."""

    wait_for_s: float
    device: str


def _rank(regions: Regions, rank: int, name: str, place: Place, work: Work, link: Link) -> None:
    torch.set_num_threads(1)
    memory = take_memory(regions, torch.device(place.device))
    fabric = NixlFabric(f"{name}-{rank}", region_of(memory))
    transport = FabricTransport(fabric, memory, regions, rank)
    link.send(transport.card())
    transport.connect(link.recv())
    group = ExpertGroup.over(transport, regions, rank, Waiting(place.wait_for_s))
    try:
        work(group, link)
    except (EOFError, BrokenPipeError):
        os._exit(1)
    group.close()
    # UCX may abort in its destructors when a peer has died before us.
    os._exit(0)
