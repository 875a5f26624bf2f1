"""The Ranks port: processes that compute an engine's batches together, so that it need not hold the layers itself."""

from __future__ import annotations

import mmap
from typing import Protocol

import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.reference.model import ForwardPass


class Ranks(Protocol):
    """All of them; they live and die together."""

    @property
    def memory(self) -> mmap.mmap | torch.Tensor:
        """The KV cache, which they share: on the host, or uint8 on the engine's GPU."""

    @property
    def model(self) -> ForwardPass:
        """What they compute."""

    @property
    def loads(self) -> tuple[ExpertRankLoad, ...]:
        """What each has done, as of the last step."""

    @property
    def num_restarts(self) -> int:
        """How often they were started again."""

    def ensure(self) -> bool:
        """All of them are alive; True when they had to be started again. Raises RankGone when they cannot be."""

    def close(self) -> None:
        """None of them is left."""
