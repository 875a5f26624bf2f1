"""From rows as they arrived to the final layout, and from answers back to sums."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_shim.experts.plan import Route, TargetPlan, target_plan
from engine_shim.experts.quantise import DTYPES, Rows
from engine_shim.experts.regions import Regions
from engine_shim.experts.shape import ExpertShape
from engine_shim.experts.wire import answers_of, carried_of, rows_of


@dataclass(frozen=True, slots=True)
class Arrival:
    """All rows that came to one rank, source after source, each in the order in which it sent them."""

    raw: torch.Tensor
    """uint8 [rows, Regions.dispatch_bytes]"""
    slots: torch.Tensor
    """int64, where each goes in the final layout: exact [rows]; de-duplicated [rows, K], -1 where k is elsewhere."""
    weights: torch.Tensor | None
    """float32 [rows, K] where rows are de-duplicated."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all counts together say of one step; on the CPU, wherever the rows are."""

    local: torch.Tensor
    """int64 [N, E / N]: rows of each source for each expert of this rank."""
    sent: list[list[int]]
    """[N][N]: rows that travel from each source to each target."""
    target: TargetPlan


def traffic_of(counts: torch.Tensor, rank: int, shape: ExpertShape) -> Traffic:
    """The Traffic seen from `rank`.

    Args:
        counts: int64 [N, E + N], rows of each source for each expert, and de-duplicated for each rank.
    """
    by_expert, by_rank = counts[:, : shape.num_experts], counts[:, shape.num_experts :]
    sent = by_rank if shape.deduplicates else by_expert.reshape(shape.num_ranks, shape.num_ranks, -1).sum(-1)
    first = rank * shape.local_experts
    local = by_expert[:, first : first + shape.local_experts]
    return Traffic(local, sent.tolist(), target_plan(by_expert, rank, shape))


def arrival_of(regions: Regions, rank: int, traffic: Traffic, inbox: torch.Tensor, epoch: int) -> Arrival:
    """What lies in the inbox of `rank`."""
    shape, run_slots = regions.shape, traffic.target.run_slots.to(inbox.device)
    sent = [row[rank] for row in traffic.sent]
    raw = _gather(regions, inbox, epoch, sent)
    if not shape.deduplicates:
        return Arrival(raw, _run_slots(run_slots, traffic.local.to(inbox.device)), None)
    carried = carried_of(raw, shape)
    sources = torch.repeat_interleave(torch.arange(shape.num_ranks), torch.tensor(sent)).to(inbox.device)
    here = (carried.experts.to(torch.int64) - rank * shape.local_experts).clamp(min=0)
    slots = run_slots[sources.unsqueeze(1), here] + carried.places
    return Arrival(raw, slots.masked_fill(carried.experts < 0, -1), carried.weights)


def spread(arrival: Arrival, target: TargetPlan, shape: ExpertShape) -> Rows:
    """Rows [slots] in the final layout; padding is 0."""
    num_bytes = shape.dispatch_row_bytes
    out = arrival.raw.new_zeros(int(target.expert_offsets[-1]), num_bytes)
    if arrival.slots.dim() == 1:
        out[arrival.slots] = arrival.raw[:, :num_bytes]
    else:
        rows, ks = torch.nonzero(arrival.slots >= 0, as_tuple=True)
        out[arrival.slots[rows, ks]] = arrival.raw[rows, :num_bytes]
    return rows_of(out, shape)


def partial_sums(arrival: Arrival, answers: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """float32 [rows, H]: for each de-duplicated row the weighted sum of its answers here, in the order of k."""
    assert arrival.weights is not None
    # Every answer is rounded as if it travelled, so that the sum is one of the same numbers in both numerics.
    rounded = answers.to(DTYPES[shape.combine_format])
    return sum_over_k(rounded, arrival.slots, arrival.weights)


def weighted_sums(raw: torch.Tensor, one: Route, weights: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """float32 [T, H] of answers in the order in which the rows left.

    Args:
        raw: uint8 [rows, combine_row_bytes].
    """
    rows = answers_of(raw, shape)
    if shape.deduplicates:
        return sum_over_k(rows, one.rank_places, None)
    return sum_over_k(rows, one.places, weights.float())


def sum_over_k(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """float32 [n, H]: rows[places[:, 0]] * weights[:, 0] + ..., one after the other; a place of -1 adds nothing."""
    total = torch.zeros(len(places), rows.shape[1], device=rows.device)
    for k in range(places.shape[1]):
        there = torch.nonzero(places[:, k] >= 0).view(-1)
        part = rows[places[there, k]].float()
        if weights is not None:
            part = part * weights[there, k : k + 1]
        total[there] += part
    return total


def _gather(regions: Regions, inbox: torch.Tensor, epoch: int, sent: list[int]) -> torch.Tensor:
    size, parts, overflow = regions.dispatch_bytes, [], regions.inbox_overflow(epoch)
    for source, num_rows in enumerate(sent):
        private = min(num_rows, regions.private_rows)
        begin = regions.inbox_private(epoch, source)
        parts.append(inbox[begin : begin + private * size])
        beyond = (num_rows - private) * size
        parts.append(inbox[overflow : overflow + beyond])
        overflow += beyond
    return torch.cat(parts).view(-1, size)


def _run_slots(run_slots: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Slots of rows that come source after source and, within a source, expert after expert."""
    runs, first = local.reshape(-1), run_slots.reshape(-1)
    begins = runs.cumsum(0) - runs
    return torch.repeat_interleave(first - begins, runs) + torch.arange(int(runs.sum()), device=runs.device)
