"""What an engine and its rank processes say to each other, over one socket each, in this order.

engine                    rank
Start            ->
                 <-       Joining       an agent that can be written
Together         ->                     all agents
                 <-       Ready         weights loaded, one step taken together
Compute          ->                     again and again, to all ranks at once
                 <-       Computed
                 <-       Failed        instead of any answer; the rank ends
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.ranks.meeting import Card
from engine_shim.engine.ranks.shared_memory import Handle
from engine_shim.engine.reference.batch import Chunk
from engine_shim.engine.reference.expert_share import ExpertShare
from engine_shim.engine.reference.settings import ReferenceSettings
from router.contract.kv import KVLayout


@dataclass(frozen=True, slots=True)
class Start:
    """Everything that a rank must know."""

    rank: int
    group: str
    """Name of this start of the group; agents carry it, so that an earlier group's notices are nobody's."""
    share: ExpertShare
    settings: ReferenceSettings
    device: torch.device
    """Where this rank computes."""
    layout: KVLayout
    kv: Handle
    """The engine's KV cache, shared by all ranks of its host."""
    num_positions: int


@dataclass(frozen=True, slots=True)
class Joining:
    """This rank can be written."""

    card: Card
    buffer_bytes: int
    """Memory that its experts' rows travel through."""
    pid: int


@dataclass(frozen=True, slots=True)
class Together:
    """All ranks' cards."""

    cards: Mapping[int, Card]


@dataclass(frozen=True, slots=True)
class Ready:
    """This rank has its weights."""

    hashes: Mapping[str, str]
    """Digest of each tensor that it has read."""


@dataclass(frozen=True, slots=True)
class Compute:
    """One step; a rank without chunks takes part all the same."""

    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """The wanted rows' hidden states, in the order of the chunks."""

    hidden: npt.NDArray[np.float32]
    """An array, since torch would send a handle of shared memory and not the numbers."""
    load: ExpertRankLoad


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank gives up."""

    sentence: str
    by_setup: bool
    """The operator must change the set-up: another start would end alike."""


FromRank = Joining | Ready | Computed | Failed
ToRank = Start | Together | Compute
