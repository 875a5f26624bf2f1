"""The float64 oracle: a dense mixture of experts, and how far a combine may be from it.

Every expert is an affine map of its own, weights are not normalised and differ in every (token, k), so an answer of a
wrong expert, a swapped weight or a row counted twice shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from engine_shim.experts.reference import RankTokens
from engine_shim.experts.shape import ExpertShape, RowFormat

HALF_STEP = {RowFormat.BF16: 2.0**-8, RowFormat.F32: 2.0**-24}
"""Relative error of one rounding to the format (unit roundoff)."""


@dataclass(frozen=True, slots=True)
class AffineExperts:
    """Expert e computes x * gains[e] + shifts[e], number by number."""

    gains: torch.Tensor
    """float64 [E, H]"""
    shifts: torch.Tensor
    """float64 [E, H]"""

    def answer(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """float64 [rows, H] for rows [rows, H] of these experts [rows]."""
        return x.double() * self.gains[experts] + self.shifts[experts]


@cache
def affine_experts(num_experts: int, hidden_size: int, seed: int) -> AffineExperts:
    """Seeded experts, no two alike."""
    generator = torch.Generator().manual_seed(seed)
    gains = torch.randn(num_experts, hidden_size, generator=generator, dtype=torch.float64)
    return AffineExperts(gains, torch.randn(num_experts, hidden_size, generator=generator, dtype=torch.float64))


def oracle_moe(x: torch.Tensor, tokens: RankTokens, experts: AffineExperts) -> torch.Tensor:
    """float64 [T, H]: the dense mixture, sum over k of weights * expert(x).

    Args:
        x: [T, H] what the experts see: `tokens.x` after a round trip through dispatch_format.
    """
    out = torch.zeros(x.shape, dtype=torch.float64)
    for k in range(tokens.topk.shape[1]):
        chosen = tokens.topk[:, k].to(torch.int64)
        answer = experts.answer(x, chosen.clamp(min=0)) * tokens.weights[:, k : k + 1].double()
        out += torch.where((chosen >= 0).unsqueeze(1), answer, 0.0)
    return out


def exact_sum(rows: torch.Tensor, tokens: RankTokens) -> torch.Tensor:
    """float64 [T, H]: the exact weighted sum of answers [T, K, H] as they travelled."""
    weights = torch.where(tokens.topk >= 0, tokens.weights, 0.0).double()
    return (rows.double() * weights.unsqueeze(-1)).sum(1)


def combine_bound(rows: torch.Tensor, tokens: RankTokens, shape: ExpertShape, out: RowFormat) -> torch.Tensor:
    """float64 [T, H]: the most by which a combine may differ from `exact_sum`, rounding of the answers left out.

    With u = 2^-24, K products and at most K sums in float32, and S = sum |w y| (Higham 2002, section 3.1):

        sum in float32     <= (K + 1) u (1 + 2^-10) S             the middle factor: second-order terms
        de-duplicated      + (h + N u) (1 + 2^-10) (P + that)      P = sum over ranks of |partial sum|, h: its rounding
        result             + h_out (|exact sum| + all of the above)

    Args:
        rows: [T, K, H] answers as they travelled, converted from combine_format.
        out: format of the result.
    """
    weights = torch.where(tokens.topk >= 0, tokens.weights, 0.0).double().unsqueeze(-1)
    parts = rows.double() * weights
    unit = 2.0**-24 * (1 + 2.0**-10)
    error = (shape.top_k + 1) * unit * parts.abs().sum(1)
    if shape.deduplicates:
        ranks = tokens.topk.to(torch.int64).div(shape.local_experts, rounding_mode="floor")
        partials = [(parts * (ranks == rank).unsqueeze(-1)).sum(1).abs() for rank in range(shape.num_ranks)]
        rounding = HALF_STEP[shape.combine_format] * (1 + 2.0**-10) + shape.num_ranks * unit
        error = error + rounding * (sum(partials, torch.zeros_like(error)) + error)
    total = parts.sum(1).abs()
    return error + HALF_STEP[out] * (total + error)
