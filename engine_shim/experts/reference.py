"""The slow torch version of dispatch and combine: all ranks at once, row by row. It is the specification.

Every transport must give, for the same arguments, the same bytes after dispatch, and after combine a result within
`oracle.combine_bound` of the exact sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_shim.experts.plan import ExpertPlan, TargetPlan, expert_plan, route, target_plan
from engine_shim.experts.quantise import DTYPES, Rows, pack_rows
from engine_shim.experts.shape import ExpertShape


@dataclass(frozen=True, slots=True)
class RankTokens:
    """What one rank brings to a step."""

    x: torch.Tensor
    """[T, H] float32 or bfloat16."""
    topk: torch.Tensor
    """integers [T, K]; -1 is "no expert"."""
    weights: torch.Tensor
    """float32 [T, K]; not looked at where topk is -1."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one rank holds after dispatch."""

    rows: Rows
    """[slots, ...]: `target.expert_offsets[-1]` slots; padding is 0."""
    target: TargetPlan
    origins: torch.Tensor
    """int64 [slots, 3]: source rank, token and k of each slot; -1 in padding."""


def counts_of(step: Sequence[RankTokens], shape: ExpertShape) -> torch.Tensor:
    """int32 [N, E]: rows of each rank for each expert."""
    return torch.stack([route(tokens.topk, shape).counts for tokens in step])


def reference_dispatch(step: Sequence[RankTokens], shape: ExpertShape) -> list[Held]:
    """What each rank holds after the step's dispatch."""
    counts = counts_of(step, shape)
    targets = [target_plan(counts, rank, shape) for rank in range(shape.num_ranks)]
    held = [_empty(target, shape, step[0].x.device) for target in targets]
    for source, tokens in enumerate(step):
        plan = expert_plan(tokens.topk, counts, source, shape)
        packed = pack_rows(tokens.x, shape.dispatch_format)
        for token, k in torch.nonzero(plan.slots >= 0).tolist():
            at, slot = held[int(plan.ranks[token, k])], int(plan.slots[token, k])
            at.rows.numbers[slot] = packed.numbers[token]
            at.rows.scales[slot] = packed.scales[token]
            at.origins[slot] = torch.tensor([source, token, k])
    return held


def reference_combine(
    answers: Sequence[torch.Tensor], step: Sequence[RankTokens], shape: ExpertShape, out_dtype: torch.dtype
) -> list[torch.Tensor]:
    """[T, H] of each rank: the weighted sums of its tokens' answers, in the order that the numerics name.

    Args:
        answers: of each rank [slots, H], an answer per slot; they are rounded to combine_format on the way.
    """
    counts = counts_of(step, shape)
    out = []
    for source, tokens in enumerate(step):
        plan = expert_plan(tokens.topk, counts, source, shape)
        sums = [_weighted_sum(answers, plan, tokens, token, shape) for token in range(len(tokens.topk))]
        out.append(torch.stack(sums) if sums else torch.zeros(0, shape.hidden_size, device=tokens.x.device))
    return [sums.to(out_dtype) for sums in out]


def _weighted_sum(
    answers: Sequence[torch.Tensor], plan: ExpertPlan, tokens: RankTokens, token: int, shape: ExpertShape
) -> torch.Tensor:
    """float32 [H]"""
    wire, dedup = DTYPES[shape.combine_format], shape.deduplicates
    zero = torch.zeros(shape.hidden_size, device=tokens.x.device)
    partial: dict[int, torch.Tensor] = {}
    for k in range(shape.top_k):
        rank, slot = int(plan.ranks[token, k]), int(plan.slots[token, k])
        if rank >= 0:
            # Exact: one sum over all k. De-duplicated: one for each rank.
            key = rank if dedup else 0
            answer = answers[rank][slot].to(wire).float() * tokens.weights[token, k]
            partial[key] = partial.get(key, zero) + answer
    rounded = [partial[key].to(wire).float() if dedup else partial[key] for key in sorted(partial)]
    return sum(rounded, zero)


def _empty(target: TargetPlan, shape: ExpertShape, device: torch.device) -> Held:
    num_slots = int(target.expert_offsets[-1])
    return Held(
        rows=Rows(
            torch.zeros(num_slots, shape.hidden_size, device=device).to(DTYPES[shape.dispatch_format]),
            torch.zeros(num_slots, shape.num_scales, device=device),
        ),
        target=target,
        origins=torch.full((num_slots, 3), -1, dtype=torch.int64, device=device),
    )
