"""Rows as bytes in inbox and outbox.

    exact      numbers [H] | scales float32 [H / 128]                                      | to a multiple of 16
    dedup      numbers [H] | scales | experts int32 [K] | places int32 [K] | weights float32 [K] | to a multiple of 16
    answer     numbers [H] of combine_format

`experts` are those of the row's target, -1 where k is elsewhere; `places` count within the source's rows for that
expert, from which the target, who knows all counts, finds the final slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_shim.experts.plan import Route
from engine_shim.experts.quantise import DTYPES, Rows, pack_rows
from engine_shim.experts.shape import ExpertShape


@dataclass(frozen=True, slots=True)
class Carried:
    """What de-duplicated rows bring with them, each [rows, K]."""

    experts: torch.Tensor
    """int32"""
    places: torch.Tensor
    """int32"""
    weights: torch.Tensor
    """float32"""


def row_bytes(x: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """uint8 [T, dispatch_row_bytes]: each token's numbers and scales."""
    rows = pack_rows(x, shape.dispatch_format)
    return torch.cat((_as_bytes(rows.numbers), _as_bytes(rows.scales)), dim=1)


def rows_of(raw: torch.Tensor, shape: ExpertShape) -> Rows:
    """Rows seen in `raw`, uint8 [rows, dispatch_row_bytes or more]; nothing is copied."""
    num_bytes = shape.hidden_size * shape.dispatch_format.number_bytes
    numbers = raw[:, :num_bytes].view(DTYPES[shape.dispatch_format])
    return Rows(numbers, raw[:, num_bytes : shape.dispatch_row_bytes].view(torch.float32))


def carried_bytes(topk: torch.Tensor, weights: torch.Tensor, one: Route, shape: ExpertShape) -> torch.Tensor:
    """uint8 [R, 12 K]: what each de-duplicated row carries."""
    tokens = one.rank_order
    ranks = torch.arange(shape.num_ranks, device=topk.device)
    targets = torch.repeat_interleave(ranks, one.rank_counts.to(torch.int64))
    experts = topk[tokens].to(torch.int64)
    elsewhere = (experts < 0) | (experts // shape.local_experts != targets.unsqueeze(1))
    places = one.places[tokens] - one.offsets[experts.clamp(min=0)]
    whole = torch.stack((experts, places)).masked_fill(elsewhere, -1).to(torch.int32)
    return torch.cat([_as_bytes(part) for part in (whole[0], whole[1], weights[tokens].float())], dim=1)


def carried_of(raw: torch.Tensor, shape: ExpertShape) -> Carried:
    """What de-duplicated rows `raw` carry; nothing is copied."""
    begin, width = shape.dispatch_row_bytes, 4 * shape.top_k
    parts = [raw[:, begin + i * width : begin + (i + 1) * width] for i in range(3)]
    return Carried(parts[0].view(torch.int32), parts[1].view(torch.int32), parts[2].view(torch.float32))


def answer_bytes(answers: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """uint8 [rows, combine_row_bytes]"""
    return _as_bytes(answers.to(DTYPES[shape.combine_format]))


def answers_of(raw: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """[rows, H] of combine_format; nothing is copied."""
    return raw.view(DTYPES[shape.combine_format])


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    return rows.contiguous().view(torch.uint8).view(len(rows), -1) if rows.numel() else _no_bytes(rows)


def _no_bytes(rows: torch.Tensor) -> torch.Tensor:
    return rows.new_zeros((len(rows), rows.shape[1] * rows.element_size()), dtype=torch.uint8)
