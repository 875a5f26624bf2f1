"""A mixture of experts as an Mlp: this rank's rows go to their experts' ranks and come back as sums.

The shared expert is computed while rows travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_shim.engine.reference.gate import Gate
from engine_shim.engine.reference.mlp import SwiGLU
from engine_shim.engine.reference.walk import Walk, finish
from engine_shim.experts.port import Dispatched, Experts
from engine_shim.experts.quantise import Rows, unpack_rows


class MixtureOfExperts:
    """See Mlp. Every rank calls it for every layer of every step, with zero rows if it has none."""

    def __init__(self, gate: Gate, experts: Experts, local: Sequence[SwiGLU], shared: SwiGLU | None) -> None:
        """`local` are this rank's experts, in order."""
        self._gate = gate
        self._experts = experts
        self._local = local
        self._shared = shared

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See Mlp."""
        return finish(self.walk(residual, x))

    def walk(self, residual: torch.Tensor, x: torch.Tensor) -> Walk:
        """`add_to`, pausing while rows, and then answers, are under way."""
        flight = self._experts.dispatch_send(x, *self._gate.choose(x))
        shared = self._shared(x) if self._shared is not None and len(x) else None
        yield
        held = self._experts.dispatch_receive(flight)
        self._experts.combine_send(flight, self._answers(held, x.dtype))
        yield
        mixed = self._experts.combine_receive(flight)
        return residual + (mixed if shared is None else mixed + shared)

    def _answers(self, held: Dispatched, dtype: torch.dtype) -> torch.Tensor:
        """[slots, H]; padding is not written."""
        begins, counts = held.target.expert_offsets.tolist(), held.target.expert_counts.tolist()
        rows = unpack_rows(Rows(held.rows.numbers[: begins[-1]], held.rows.scales[: begins[-1]])).to(dtype)
        answers = torch.empty_like(rows)
        for expert, begin, count in zip(self._local, begins, counts, strict=False):
            if count:
                answers[begin : begin + count] = expert(rows[begin : begin + count].contiguous())
        return answers
