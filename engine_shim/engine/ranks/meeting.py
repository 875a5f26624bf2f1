"""How the ranks of one engine meet: each shows a card, all get all cards, and each has its end of the group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from engine_shim.engine.ranks.halves import NUM_HALVES
from engine_shim.engine.reference.settings import ExpertTransport, ReferenceSettings
from engine_shim.experts.fabric_transport import FabricTransport, region_of, take_memory
from engine_shim.experts.group import ExpertGroup, Waiting
from engine_shim.experts.nvlink.awaited import AwaitedNvlink
from engine_shim.experts.nvlink.experts import NvlinkExperts, NvlinkSettings
from engine_shim.experts.nvlink.library import KernelLibrary, load_library
from engine_shim.experts.nvlink.peers import share_region
from engine_shim.experts.nvlink.region import plan_region
from engine_shim.experts.port import Experts
from engine_shim.experts.regions import plan_regions
from engine_shim.experts.shape import ExpertShape
from engine_shim.experts.stats import ExpertStats
from engine_shim.fabric.group import RankCard
from engine_shim.fabric.nixl import NixlFabric

Card = RankCard | bytes
"""Over NIXL, an agent that can be written; over NVLink, a handle of memory that can be opened."""


class CountedExperts(Experts, Protocol):
    """One rank's end of a group that also counts what it does."""

    @property
    def stats(self) -> ExpertStats:
        """Since the start of the group."""


class Meeting(Protocol):
    """One rank that waits for the others."""

    @property
    def card(self) -> Card:
        """What the others need."""

    @property
    def buffer_bytes(self) -> int:
        """Memory that rows travel through."""

    def meet(self, cards: Mapping[int, Card]) -> CountedExperts:
        """This rank's end of the group. Raises HandshakeFailed or EngineDown."""


class NixlMeeting:
    """See Meeting: WRITEs between the ranks' memory, on the CPU or on a GPU."""

    def __init__(
        self, shape: ExpertShape, rank: int, name: str, device: torch.device, settings: ReferenceSettings
    ) -> None:
        """The agent `name` has registered memory on `device`."""
        self._rank, self._wait_for_s = rank, settings.expert_wait_for_s
        self._regions = plan_regions(shape, flights=NUM_HALVES if settings.expert_overlap else 1)
        memory = take_memory(self._regions, device)
        fabric = NixlFabric(name, region_of(memory))
        self._transport = FabricTransport(fabric, memory, self._regions, rank)

    @property
    def card(self) -> Card:
        """See Meeting."""
        return self._transport.card()

    @property
    def buffer_bytes(self) -> int:
        """See Meeting."""
        return self._regions.total_bytes

    def meet(self, cards: Mapping[int, Card]) -> CountedExperts:
        """See Meeting."""
        self._transport.connect({rank: card for rank, card in cards.items() if isinstance(card, RankCard)})
        return ExpertGroup.over(self._transport, self._regions, self._rank, Waiting(self._wait_for_s))


class NvlinkMeeting:
    """See Meeting: kernels that address the memory of all ranks."""

    def __init__(self, shape: ExpertShape, rank: int, device: torch.device, settings: ReferenceSettings) -> None:
        """Raise BadSettings when the kernels cannot serve the shape, or there is no room."""
        self._shape, self._rank, self._settings = shape, rank, settings
        self._library = kernels_for(settings)
        self._plan = plan_region(shape, NUM_HALVES)
        self._shared = share_region(self._plan.num_bytes, device, self._library)

    @property
    def card(self) -> Card:
        """See Meeting."""
        return self._shared.handle

    @property
    def buffer_bytes(self) -> int:
        """See Meeting."""
        return self._plan.num_bytes

    def meet(self, cards: Mapping[int, Card]) -> CountedExperts:
        """See Meeting."""
        handles = [handle for _, handle in sorted(cards.items()) if isinstance(handle, bytes)]
        regions = self._shared.meet(self._rank, handles)
        settings = NvlinkSettings(timeout_s=self._settings.expert_wait_for_s)
        inner = NvlinkExperts(self._shape, self._rank, self._plan, regions, self._library, settings)
        return AwaitedNvlink(inner, ExpertStats(self._shape.local_experts))


def meeting_of(shape: ExpertShape, rank: int, name: str, device: torch.device, settings: ReferenceSettings) -> Meeting:
    """Rank `rank` of the group whose agents are called `name`-N, on `device`. Raises BadSettings."""
    if settings.expert_transport is ExpertTransport.NVLINK:
        return NvlinkMeeting(shape, rank, device, settings)
    return NixlMeeting(shape, rank, f"{name}-{rank}", device, settings)


def kernels_for(settings: ReferenceSettings) -> KernelLibrary:
    """The kernels that `settings` name, or those that are built at first use. Raises MissingDependency."""
    return load_library(Path(settings.expert_kernels) if settings.expert_kernels else None)
