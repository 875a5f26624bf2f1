"""NvlinkExperts for an engine that computes eagerly: each receive half returns when its rows are here.

The kernels' own bound ends every wait, and a fault is raised by the half that has met it. Under CUDA graphs
NvlinkExperts is used as it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from engine_shim.experts.nvlink.experts import NvlinkExperts
from engine_shim.experts.port import Dispatched, Flight, Phase, Status
from engine_shim.experts.shape import ExpertShape
from engine_shim.experts.stats import ExpertStats


@dataclass(frozen=True, slots=True)
class AwaitedNvlink:
    """See Experts; one process uses it, from one thread, on torch's current stream."""

    inner: NvlinkExperts
    stats: ExpertStats

    @property
    def shape(self) -> ExpertShape:
        """See Experts."""
        return self.inner.shape

    @property
    def rank(self) -> int:
        """See Experts."""
        return self.inner.rank

    @property
    def status(self) -> Status:
        """See Experts."""
        return self.inner.status

    def dispatch_send(
        self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, num_tokens: int | torch.Tensor | None = None
    ) -> Flight:
        """See Experts."""
        began = time.monotonic()
        flight = self.inner.dispatch_send(x, topk, weights, num_tokens)
        self.stats.sent(time.monotonic() - began)
        return flight

    def dispatch_receive(self, flight: Flight) -> Dispatched:
        """See Experts."""
        held = self.inner.dispatch_receive(flight)
        self._await(Phase.DISPATCH)
        self.stats.received(held.target.expert_counts)
        return held

    def combine_send(self, flight: Flight, answers: torch.Tensor) -> None:
        """See Experts."""
        began = time.monotonic()
        self.inner.combine_send(flight, answers)
        self.stats.answered(time.monotonic() - began)

    def combine_receive(self, flight: Flight, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Experts."""
        sums = self.inner.combine_receive(flight, out)
        self._await(Phase.COMBINE)
        return sums

    def mask(self, peers: frozenset[int]) -> None:
        """See Experts."""
        self.inner.mask(peers)

    def close(self) -> None:
        """See Experts."""
        self.inner.close()

    def _await(self, phase: Phase) -> None:
        """Everything so far has run on the GPU, without a fault. Raises RankGone or BadRequest."""
        began = time.monotonic()
        self.inner.wait()
        self.stats.waited(phase, time.monotonic() - began, None)
