"""TwinGroup: all ranks of a group in one process and on one device, one phase after the other.

    route        each rank counts and places its choices         then all counts are known
    dispatch     exact: pack, send                               de-duplicated: pack, stage | spread
    combine      exact: gather                                   de-duplicated: gather | add_up

`|` is where all ranks must have come through; here the launches' order sees to it. On CPU tensors the kernels need
Triton's interpreter (TRITON_INTERPRET=1 before the import).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from engine_shim.experts.plan import TargetPlan, first_slots, target_plan
from engine_shim.experts.port import Dispatched
from engine_shim.experts.quantise import DTYPES
from engine_shim.experts.reference import RankTokens
from engine_shim.experts.shape import SCALE_WIDTH, ExpertShape, RowFormat
from engine_shim.experts.twins import kernels
from engine_shim.experts.wire import rows_of

BLOCK = 128
"""Numbers, or bytes, or entries, that a program takes at once."""
NUMBERS = {RowFormat.FP8: tl.float8e4nv, RowFormat.BF16: tl.bfloat16, RowFormat.F32: tl.float32}
EXACTLY = {"enable_fp_fusion": False}
"""A product and a sum are rounded each."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """What one rank brings, and what of it has been placed."""

    tokens: RankTokens
    topk: torch.Tensor
    """int64 [T, K], contiguous."""
    places: torch.Tensor
    """int64 [T, K]: places within the rank's rows for the expert."""
    counts: torch.Tensor
    """int32 [E]"""


class TwinGroup:
    """One step at a time: `dispatch`, then `combine`."""

    def __init__(self, shape: ExpertShape, device: torch.device) -> None:
        """All tensors are on `device`."""
        self._shape, self._device = shape, device
        self._ranks: list[_Rank] = []
        self._slots: list[torch.Tensor] = []

    def dispatch(self, step: Sequence[RankTokens]) -> list[Dispatched]:
        """What each rank holds; padding is 0."""
        shape = self._shape
        self._ranks = [self._route(tokens) for tokens in step]
        counts = torch.stack([one.counts for one in self._ranks])
        first = first_slots(counts, shape)
        self._slots = [
            (first[rank][one.topk.clamp(min=0)] + one.places).masked_fill(one.topk < 0, -1)
            for rank, one in enumerate(self._ranks)
        ]
        targets = [target_plan(counts, rank, shape) for rank in range(shape.num_ranks)]
        held = [self._bytes(int(target.expert_offsets[-1])) for target in targets]
        packed = [self._pack(one.tokens.x) for one in self._ranks]
        if shape.deduplicates:
            self._stage_and_spread(packed, held)
        else:
            self._send(packed, first, held)
        return [self._dispatched(raw, target) for raw, target in zip(held, targets, strict=True)]

    def combine(self, answers: Sequence[torch.Tensor], out_dtype: torch.dtype) -> list[torch.Tensor]:
        """[T, H] of each rank: weighted sums of answers [slots, H] of each rank."""
        wire = DTYPES[self._shape.combine_format]
        sent = [one.to(wire).contiguous() for one in answers]
        if not self._shape.deduplicates:
            return [
                self._gather(slots, self._ranks_of(one.topk), one.tokens.weights, sent, out_dtype)
                for one, slots in zip(self._ranks, self._slots, strict=True)
            ]
        weights = torch.cat([self._padded(one.tokens.weights.float(), 0) for one in self._ranks])
        partials = [
            self._gather(self._slots_at(rank), torch.full_like(self._slots_at(rank), rank), weights, sent, wire)
            for rank in range(self._shape.num_ranks)
        ]
        return [self._add_up(rank, partials, out_dtype) for rank in range(self._shape.num_ranks)]

    def _route(self, tokens: RankTokens) -> _Rank:
        topk = tokens.topk.to(torch.int64).contiguous()
        counts = torch.zeros(self._shape.num_experts, dtype=torch.int32, device=self._device)
        places = torch.full_like(topk, -1)
        self._launch(kernels.route, (self._shape.num_experts,), topk, places, counts, topk.numel(), BLOCK)
        return _Rank(tokens, topk, places, counts)

    def _pack(self, x: torch.Tensor) -> torch.Tensor:
        shape, rows = self._shape, self._bytes(len(x))
        fp8 = shape.dispatch_format is RowFormat.FP8
        blocks = triton.cdiv(shape.hidden_size, SCALE_WIDTH)
        sizes = (shape.hidden_size, shape.dispatch_row_bytes)
        self._launch(
            kernels.pack,
            (len(x), blocks),
            x.contiguous(),
            rows,
            *sizes,
            fp8,
            NUMBERS[shape.dispatch_format],
            SCALE_WIDTH,
        )
        return rows

    def _send(self, packed: Sequence[torch.Tensor], first: torch.Tensor, held: Sequence[torch.Tensor]) -> None:
        shape, to_at = self._shape, self._addresses(held)
        for rank, one in enumerate(self._ranks):
            places = (one.topk, one.places, first[rank].contiguous())
            sizes = (shape.dispatch_row_bytes, shape.top_k, shape.local_experts, BLOCK)
            self._launch(kernels.send, (one.topk.numel(),), *places, packed[rank], to_at, *sizes)

    def _stage_and_spread(self, packed: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> None:
        shape, row_bytes = self._shape, self._shape.dispatch_row_bytes
        staged = [self._bytes(shape.num_ranks * shape.max_tokens) for _ in self._ranks]
        to_at = self._addresses(staged)
        for rank, one in enumerate(self._ranks):
            sizes = (shape.max_tokens, row_bytes, shape.top_k, shape.local_experts, BLOCK)
            grid = (len(one.topk), shape.num_ranks)
            self._launch(kernels.stage, grid, one.topk, packed[rank], to_at, rank, *sizes)
        for rank, rows in enumerate(held):
            slots = self._slots_at(rank)
            whence = (slots, staged[rank], rows)
            self._launch(kernels.spread, (slots.numel(),), *whence, row_bytes, shape.top_k, BLOCK)

    def _gather(
        self,
        slots: torch.Tensor,
        ranks: torch.Tensor,
        weights: torch.Tensor,
        answers: Sequence[torch.Tensor],
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        shape = self._shape
        out = torch.empty(len(slots), shape.hidden_size, dtype=out_dtype, device=self._device)
        sizes = (shape.hidden_size, NUMBERS[shape.combine_format], shape.top_k, BLOCK)
        whence = (slots.contiguous(), ranks.contiguous(), weights.float().contiguous(), self._addresses(answers))
        self._launch(kernels.gather, (len(slots), triton.cdiv(shape.hidden_size, BLOCK)), *whence, out, *sizes)
        return out

    def _add_up(self, rank: int, partials: Sequence[torch.Tensor], out_dtype: torch.dtype) -> torch.Tensor:
        shape, topk = self._shape, self._ranks[rank].topk
        out = torch.empty(len(topk), shape.hidden_size, dtype=out_dtype, device=self._device)
        sizes = (shape.max_tokens, shape.hidden_size, NUMBERS[shape.combine_format], shape.top_k)
        grid = (len(topk), triton.cdiv(shape.hidden_size, BLOCK))
        whence = (topk, self._addresses(partials), out, rank)
        self._launch(kernels.add_up, grid, *whence, *sizes, shape.local_experts, shape.num_ranks, BLOCK)
        return out

    def _slots_at(self, rank: int) -> torch.Tensor:
        """[N * max_tokens, K]: where each staged token's rows go at `rank`; -1 for those of other ranks."""
        own = [
            slots.masked_fill(self._ranks_of(one.topk) != rank, -1)
            for one, slots in zip(self._ranks, self._slots, strict=True)
        ]
        return torch.cat([self._padded(slots, -1) for slots in own])

    def _ranks_of(self, topk: torch.Tensor) -> torch.Tensor:
        return topk.div(self._shape.local_experts, rounding_mode="floor")

    def _padded(self, rows: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, 0, 0, self._shape.max_tokens - len(rows)), value=value)

    def _bytes(self, num_rows: int) -> torch.Tensor:
        return torch.zeros(num_rows, self._shape.dispatch_row_bytes, dtype=torch.uint8, device=self._device)

    def _dispatched(self, raw: torch.Tensor, target: TargetPlan) -> Dispatched:
        return Dispatched(rows_of(raw, self._shape), target)

    def _addresses(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.int64, device=self._device)

    # Any: a kernel's own arguments, which Triton checks.
    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any) -> None:  # noqa: ANN401
        if all(grid):
            kernel[grid](*arguments, **EXACTLY)
