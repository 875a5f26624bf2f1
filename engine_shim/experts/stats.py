"""What one rank measures of its steps: where the time goes, and how unevenly experts are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine_shim.experts.port import Phase


@dataclass(slots=True)
class ExpertStats:
    """Sums since the start. Waiting for a late rank is kept apart from work, or imbalance would look like transfer."""

    local_experts: int
    num_steps: int = 0
    dispatch_s: float = 0.0
    """Packing and posting rows."""
    combine_s: float = 0.0
    """Packing and posting answers."""
    dispatch_wait_s: float = 0.0
    combine_wait_s: float = 0.0
    late_s: dict[int, float] = field(default_factory=dict)
    """Seconds of waits by the rank that came last in them."""
    expert_rows: list[int] = field(default_factory=list)
    """Rows of each local expert."""

    def sent(self, took_s: float) -> None:
        """One dispatch has been posted."""
        self.num_steps += 1
        self.dispatch_s += took_s

    def received(self, expert_counts: torch.Tensor) -> None:
        """So many rows came for each local expert."""
        before = self.expert_rows or [0] * self.local_experts
        self.expert_rows = [a + b for a, b in zip(before, expert_counts.tolist(), strict=True)]

    def answered(self, took_s: float) -> None:
        """One combine has been posted."""
        self.combine_s += took_s

    def waited(self, phase: Phase, took_s: float, latest: int | None) -> None:
        """One half has had its landings."""
        if phase is Phase.COMBINE:
            self.combine_wait_s += took_s
        else:
            self.dispatch_wait_s += took_s
        if latest is not None:
            self.late_s[latest] = self.late_s.get(latest, 0.0) + took_s
