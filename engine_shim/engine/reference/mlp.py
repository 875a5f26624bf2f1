"""The feed-forward half of a layer. A mixture of experts is another Mlp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from engine_shim.engine.reference.linear import Linear

Gated = Callable[[torch.Tensor], torch.Tensor]
"""silu(gate) * up: from [rows, gate | up] to [rows, width]."""


def gated_by(silu: Callable[[torch.Tensor], torch.Tensor]) -> Gated:
    """Gated by this silu, which gives a new tensor."""

    def gated(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate).mul_(up)

    return gated


class Mlp(Protocol):
    """What a layer computes for each row on its own."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + mlp(x): [rows, hidden]."""


class SwiGLU:
    """down(silu(gate(x)) * up(x)). Source: Shazeer 2020, "GLU Variants Improve Transformer"."""

    def __init__(self, gate_up: Linear, down: Linear, gated: Gated) -> None:
        self._gate_up = gate_up
        self._down = down
        self._gated = gated

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden], without a residual."""
        return self._down(self._gated(self._gate_up(x)))

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See Mlp."""
        if not len(x):
            return residual
        return self._down.add_to(residual, self._gated(self._gate_up(x)))
