"""A group of one rank: the same sums as any group, and nothing travels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine_shim.experts.plan import Route, check_given, check_rows, route, target_plan
from engine_shim.experts.port import Dispatched, Flight, Status
from engine_shim.experts.quantise import DTYPES, pack_rows
from engine_shim.experts.shape import ExpertShape
from engine_shim.experts.spread import sum_over_k
from engine_shim.experts.wire import row_bytes, rows_of
from router.contract.errors import BadRequest, BadSettings, Impossible


@dataclass(frozen=True, slots=True)
class _Step:
    route: Route
    slots: torch.Tensor
    """[rows]: the slot of each row that leaves."""
    weights: torch.Tensor
    dtype: torch.dtype
    rows: Dispatched


@dataclass(slots=True)
class SoloExperts:
    """See Experts. Both numerics are one here but for the rounding of the one partial sum."""

    shape: ExpertShape
    rank: int = 0
    status: Status = field(default_factory=Status)
    _epoch: int = 0
    _steps: dict[int, _Step] = field(default_factory=dict)
    _sums: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise BadSettings for a shape of several ranks."""
        if self.shape.num_ranks != 1:
            raise BadSettings(f"{self.shape.num_ranks} ranks cannot be one; give the group a transport.")

    def dispatch_send(
        self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, num_tokens: int | torch.Tensor | None = None
    ) -> Flight:
        """See Experts."""
        live = len(topk) if num_tokens is None else int(num_tokens)
        check_given(x, topk, weights, live, self.shape)
        x, topk, weights = x[:live], topk[:live], weights[:live]
        one = route(topk, self.shape)
        target = target_plan(one.counts.unsqueeze(0), 0, self.shape)
        padding = target.run_slots[0] - one.offsets[:-1]
        slots = torch.repeat_interleave(padding, one.counts.to(torch.int64))
        slots = slots + torch.arange(len(slots), device=slots.device)
        rows = row_bytes(x, self.shape)
        out = rows.new_zeros(int(target.expert_offsets[-1]), rows.shape[1])
        out[slots] = rows[one.order // self.shape.top_k]
        self._epoch += 1
        flight = Flight(self._epoch)
        self._steps[flight] = _Step(one, slots, weights, x.dtype, Dispatched(rows_of(out, self.shape), target))
        return flight

    def dispatch_receive(self, flight: Flight) -> Dispatched:
        """See Experts."""
        return self._step(flight).rows

    def combine_send(self, flight: Flight, answers: torch.Tensor) -> None:
        """See Experts."""
        step = self._step(flight)
        check_rows(answers, int(step.rows.target.expert_offsets[-1]), self.shape, "Answers")
        del self._steps[flight]
        rows = answers[step.slots].to(DTYPES[self.shape.combine_format])
        sums = sum_over_k(rows, step.route.places, step.weights.float())
        if self.shape.deduplicates:
            sums = pack_rows(sums, self.shape.combine_format).numbers.float()
        self._sums[flight] = sums.to(step.dtype)

    def combine_receive(self, flight: Flight, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Experts."""
        sums = self._sums.get(flight)
        if sums is None:
            raise Impossible(f"The sums of flight {flight} are asked for before its answers were sent, or twice.")
        if out is not None:
            check_rows(out, len(sums), self.shape, "The output")
            out[: len(sums)] = sums
        del self._sums[flight]
        return sums if out is None else out

    def mask(self, peers: frozenset[int]) -> None:
        """See Experts: there are no others."""
        if self.rank in peers:
            raise BadRequest(f"Rank {self.rank} cannot mask itself.")

    def close(self) -> None:
        """See Experts."""

    def _step(self, flight: Flight) -> _Step:
        step = self._steps.get(flight)
        if step is None:
            raise Impossible(f"Flight {flight} has been answered, or has never begun.")
        return step
