"""ExpertPlan: where every row goes, from the chosen experts alone. Pure; the same on CPU and GPU.

Two facts make everything:

    Route     of one rank's own choices: counts, and the place of each (token, k) among the rank's rows
    counts    int32 [N, E]: how many rows each rank has for each expert, known to all once exchanged

**Choices** `topk` are [T, K] integers of any type: an expert's number, or -1 for "no expert", which costs nothing and
adds nothing. A token may name one expert twice; those are two rows. (token, k) is the flat index token * K + k.

**Exact layout.** A rank's rows leave in the order of (expert, token, k), so that the rows for one rank, and within
them for one expert, lie together. At the target each expert's rows lie in the order of (source rank, token, k), and
each expert begins at a multiple of `expert_align`:

    target    | expert 0: rank 0's, rank 1's, ... | padding | expert 1: rank 0's, ...      <- slots
              ^ expert_offsets[0]                           ^ expert_offsets[1]

    slot of (source s, expert e, place p within the source's rows for e) = first_slots[s, e] + p

**De-duplicated layout.** A token leaves once for each rank that holds any of its experts, in the order of (rank,
token). It carries its K final slots at that rank (-1 where k is elsewhere), and the target spreads it into the same
final layout; so what the experts see is equal, bit for bit, in both.

**The way back.** Exact: the K answers return to the places that the rows left from (`Route.places`). De-duplicated: one
partial sum returns to the place that the token left from (`Route.rank_places`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_shim.experts.shape import ExpertShape
from router.contract.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Route:
    """What one rank's choices say by themselves. int64 unless said otherwise; A assignments, R de-duplicated rows."""

    counts: torch.Tensor
    """int32 [E]: rows for each expert."""
    offsets: torch.Tensor
    """[E + 1]: where each expert's rows begin among those that leave; the last is A."""
    order: torch.Tensor
    """[A]: the flat index (token, k) of each row that leaves, in the order of (expert, token, k)."""
    places: torch.Tensor
    """[T, K]: the inverse of `order`, -1 where there is no expert."""
    rank_counts: torch.Tensor
    """int32 [N]: tokens for each rank, each token once."""
    rank_offsets: torch.Tensor
    """[N + 1]: where each rank's tokens begin among those that leave de-duplicated; the last is R."""
    rank_order: torch.Tensor
    """[R]: the token of each row that leaves de-duplicated, in the order of (rank, token)."""
    rank_places: torch.Tensor
    """[T, N]: the inverse of `rank_order`, -1 where the token has no expert on that rank."""


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """Where everything lies on one target rank, from the counts of all ranks."""

    expert_counts: torch.Tensor
    """int32 [E / N]: rows of each local expert, padding not counted."""
    expert_offsets: torch.Tensor
    """int32 [E / N + 1]: each local expert's first slot, a multiple of expert_align; the last is the end of all."""
    run_slots: torch.Tensor
    """[N, E / N]: the first slot of each source's rows within each local expert."""


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """One rank's view of one step: what it sends where, and what it will hold."""

    route: Route
    target: TargetPlan
    ranks: torch.Tensor
    """[T, K]: the rank that holds the chosen expert; -1 where there is none."""
    slots: torch.Tensor
    """[T, K]: the slot at that rank; -1 where there is none."""


def route(topk: torch.Tensor, shape: ExpertShape) -> Route:
    """The Route of one rank's choices.

    Args:
        topk: integers [T, K], T <= shape.max_tokens.
    Raises:
        BadRequest: see `check_choices`.
    """
    check_choices(topk, shape)
    topk = topk.to(torch.int64)
    experts = topk.reshape(-1)
    chosen = torch.nonzero(experts >= 0).squeeze(1)
    sorted_experts, by_expert = torch.sort(experts[chosen], stable=True)
    order = chosen[by_expert]
    counts = torch.bincount(sorted_experts, minlength=shape.num_experts)
    places = _inverse(order, topk.numel()).view(topk.shape)

    at_rank = _at_rank(topk, shape)
    rank_counts = at_rank.sum(0)
    rank_order = torch.nonzero(at_rank.t())
    flat = rank_order[:, 1] * shape.num_ranks + rank_order[:, 0]
    return Route(
        counts=counts.to(torch.int32),
        offsets=offsets_of(counts),
        order=order,
        places=places,
        rank_counts=rank_counts.to(torch.int32),
        rank_offsets=offsets_of(rank_counts),
        rank_order=rank_order[:, 1],
        rank_places=_inverse(flat, at_rank.numel()).view(at_rank.shape),
    )


def target_plan(counts: torch.Tensor, rank: int, shape: ExpertShape) -> TargetPlan:
    """Where rows lie on `rank`.

    Args:
        counts: integers [N, E], rows of each source for each expert; the row of a masked source is 0.
    """
    first = rank * shape.local_experts
    local = counts[:, first : first + shape.local_experts].to(torch.int64)
    expert_counts = local.sum(0)
    padded = (expert_counts + shape.expert_align - 1) // shape.expert_align * shape.expert_align
    offsets = offsets_of(padded)
    before = local.cumsum(0) - local
    return TargetPlan(expert_counts.to(torch.int32), offsets.to(torch.int32), offsets[:-1] + before)


def first_slots(counts: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """[N, E]: the first slot of each source's rows for each expert, at the rank that holds it."""
    return torch.cat([target_plan(counts, rank, shape).run_slots for rank in range(shape.num_ranks)], dim=1)


def expert_plan(topk: torch.Tensor, counts: torch.Tensor, rank: int, shape: ExpertShape) -> ExpertPlan:
    """The whole plan of `rank`.

    Args:
        topk: this rank's choices, integers [T, K].
        counts: integers [N, E]; row `rank` equals `route(topk, shape).counts`.
    Raises:
        BadRequest: see `check_choices`.
    """
    mine = route(topk, shape)
    experts = topk.to(torch.int64)
    none = experts < 0
    known = experts.clamp(min=0)
    within = mine.places - mine.offsets[known]
    slots = first_slots(counts, shape)[rank][known] + within
    return ExpertPlan(
        route=mine,
        target=target_plan(counts, rank, shape),
        ranks=(known // shape.local_experts).masked_fill(none, -1),
        slots=slots.masked_fill(none, -1),
    )


def check_choices(topk: torch.Tensor, shape: ExpertShape) -> None:
    """The choices are ones that this group can route.

    Raises:
        BadRequest: another K, more tokens than max_tokens, no integers, or an expert outside -1 .. E - 1.
    """
    no_integers = topk.is_floating_point() or topk.is_complex() or topk.dtype is torch.bool
    if topk.dim() != 2 or topk.shape[1] != shape.top_k or no_integers:
        raise BadRequest(f"Choices must be integers [tokens, {shape.top_k}], not {topk.dtype} {[*topk.shape]}.")
    if len(topk) > shape.max_tokens:
        raise BadRequest(
            f"This rank has {len(topk)} tokens, but the group was made for {shape.max_tokens}; take several steps."
        )
    experts = topk.to(torch.int64)
    if experts.numel() and not -1 <= int(experts.min()) <= int(experts.max()) < shape.num_experts:
        raise BadRequest(f"A chosen expert lies outside -1 (none) .. {shape.num_experts - 1}.")


def check_given(
    x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, num_tokens: int, shape: ExpertShape
) -> None:
    """What is dispatched fits the group and itself, and `num_tokens` of it may count.

    Raises:
        BadRequest: another width of x, or other numbers of tokens.
    """
    fits = x.shape == (len(topk), shape.hidden_size) and topk.shape == weights.shape
    if not (fits and 0 <= num_tokens <= len(topk)):
        what = f"x {[*x.shape]}, choices {[*topk.shape]}, weights {[*weights.shape]} and {num_tokens} tokens"
        raise BadRequest(f"{what} do not fit each other, or hidden size {shape.hidden_size}.")


def check_rows(rows: torch.Tensor, num_rows: int, shape: ExpertShape, name: str) -> None:
    """`rows` are numbers [num_rows or more, H].

    Raises:
        BadRequest: fewer rows, another width, or integers.
    """
    wide = rows.dim() == 2 and len(rows) >= num_rows and rows.shape[1] == shape.hidden_size
    if not (wide and rows.is_floating_point()):
        wanted = f"bfloat16 or float32 [{num_rows} or more, {shape.hidden_size}]"
        raise BadRequest(f"{name} must be {wanted}, not {rows.dtype} {[*rows.shape]}.")


def offsets_of(counts: torch.Tensor) -> torch.Tensor:
    """[n + 1] from [n]: where each run begins when runs follow each other; the last is the end."""
    return torch.cat((counts.new_zeros(1, dtype=torch.int64), counts.to(torch.int64).cumsum(0)))


def _at_rank(topk: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """bool [T, N]: does the token have an expert on that rank?"""
    at_rank = torch.zeros(len(topk), shape.num_ranks + 1, dtype=torch.bool, device=topk.device)
    ranks = topk.to(torch.int64).div(shape.local_experts, rounding_mode="floor")
    # "No expert" goes to a column beyond the ranks.
    at_rank.scatter_(1, torch.where(topk < 0, shape.num_ranks, ranks), value=True)
    return at_rank[:, : shape.num_ranks]


def _inverse(order: torch.Tensor, size: int) -> torch.Tensor:
    """[size]: i at `order[i]`, -1 elsewhere."""
    inverse = torch.full((size,), -1, dtype=torch.int64, device=order.device)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse
