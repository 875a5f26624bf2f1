"""Seeded steps for the benchmark of expert ranks: any rank can compute what any other brings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

import torch

from engine_shim.bench.expert_processes import Link
from engine_shim.experts.group import ExpertGroup
from engine_shim.experts.plan import route
from engine_shim.experts.reference import RankTokens, reference_combine, reference_dispatch
from engine_shim.experts.shape import ExpertShape

ROUTINGS = 16
"""Different routings in a cycle."""
WARM_SHARE = 5


class Routing(StrEnum):
    """How tokens choose experts."""

    UNIFORM = "uniform"
    ZIPF = "zipf"
    """Expert e with a weight of 1 / (e + 1)."""
    HOT = "hot"
    """Expert 0 for every token, and others uniformly."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured."""

    tokens: int
    routing: Routing
    steps: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of one rank."""

    dispatch_us: float
    combine_us: float
    wire_bytes: int
    """To other ranks, both halves."""


def tokens_of(case: Case, shape: ExpertShape, rank: int, number: int) -> RankTokens:
    """What `rank` brings to step `number`; routings come again after ROUTINGS steps."""
    generator = torch.Generator().manual_seed(number % ROUTINGS * 4099 + rank)
    odds = torch.ones(shape.num_experts, dtype=torch.float64)
    if case.routing is Routing.ZIPF:
        odds = 1 / torch.arange(1, shape.num_experts + 1, dtype=torch.float64)
    topk = torch.multinomial(odds.expand(case.tokens, -1), shape.top_k, generator=generator)
    if case.routing is Routing.HOT:
        # Who has chosen expert 0 already keeps it where it is.
        topk[:, 0] = torch.where((topk == 0).any(1), topk[:, 0], 0)
    x = torch.randn(case.tokens, shape.hidden_size, generator=generator).bfloat16()
    return RankTokens(x, topk, torch.rand(case.tokens, shape.top_k, generator=generator))


def time_steps(group: ExpertGroup, link: Link) -> None:
    """What a rank does: for each Case that comes, the samples of its steps, or a sentence that says what is wrong."""
    while True:
        case: Case = link.recv()
        wrong = check(group, case)
        if wrong:
            link.send(wrong)
            continue
        cycle = [tokens_of(case, group.shape, group.rank, number) for number in range(ROUTINGS)]
        samples = [_time(group, cycle[number % ROUTINGS]) for number in range(case.steps + case.steps // WARM_SHARE)]
        link.send(samples[case.steps // WARM_SHARE :])


def check(group: ExpertGroup, case: Case) -> str:
    """One step against the reference's bytes and sums; empty when all are right."""
    step = [tokens_of(case, group.shape, rank, 0) for rank in range(group.shape.num_ranks)]
    mine = step[group.rank]
    flight = group.dispatch_send(mine.x, mine.topk, mine.weights)
    found = group.dispatch_receive(flight)
    everybody = reference_dispatch(step, group.shape)
    held = everybody[group.rank]
    end = int(held.target.expert_offsets[-1])
    same = torch.equal(found.rows.numbers[:end].float(), held.rows.numbers.float())
    same = same and torch.equal(found.rows.scales[:end], held.rows.scales)
    group.combine_send(flight, found.rows.numbers.bfloat16())
    sums = group.combine_receive(flight)
    answers = [one.rows.numbers.bfloat16() for one in everybody]
    if not same:
        return f"rank {group.rank} holds other rows than the reference for {case}."
    same = torch.equal(sums, reference_combine(answers, step, group.shape, mine.x.dtype)[group.rank])
    return "" if same else f"rank {group.rank} has other sums than the reference for {case}."


def _time(group: ExpertGroup, tokens: RankTokens) -> Sample:
    began = time.perf_counter()
    flight = group.dispatch_send(tokens.x, tokens.topk, tokens.weights)
    found = group.dispatch_receive(flight)
    here = time.perf_counter()
    # Experts that change nothing: what is measured is the way.
    answers = found.rows.numbers.bfloat16()
    ready = time.perf_counter()
    group.combine_send(flight, answers)
    group.combine_receive(flight)
    ended = time.perf_counter()
    return Sample((here - began) * 1e6, (ended - ready) * 1e6, _wire_bytes(group, tokens))


def _wire_bytes(group: ExpertGroup, tokens: RankTokens) -> int:
    """What leaves this rank in dispatch, and what comes back to it in combine."""
    shape = group.shape
    one = route(tokens.topk, shape)
    sent = one.rank_counts if shape.deduplicates else one.counts.view(shape.num_ranks, -1).sum(1)
    away = int(sent.sum() - sent[group.rank])
    return away * (shape.dispatch_row_bytes + shape.combine_row_bytes)
