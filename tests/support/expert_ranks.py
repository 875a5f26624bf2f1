"""What rank processes do in tests: functions that a rank can be told by name."""

from __future__ import annotations

import time
from random import Random

import torch

from engine_shim.bench.expert_processes import Link
from engine_shim.experts.group import ExpertGroup
from engine_shim.experts.port import Phase
from engine_shim.experts.reference import reference_combine, reference_dispatch
from router.contract.errors import RankGone
from tests.support.expert_steps import StepCase, gaps, one_rank, repeated
from tests.support.expert_worlds import answers_of, same_rows


def check_cases(group: ExpertGroup, link: Link) -> None:
    """One step of each case that is sent, compared with the reference: bytes of dispatch, bits of combine."""
    while (case := link.recv()) is not None:
        group._exchange.regions  # noqa: B018
        link.send(is_right(group, case, seed=1))


def is_right(group: ExpertGroup, case: StepCase, seed: int) -> bool:
    step = case.step(seed)
    mine = step[group.rank]
    flight = group.dispatch_send(mine.x, mine.topk, mine.weights)
    found = group.dispatch_receive(flight)
    held = reference_dispatch(step, case.shape)
    right = same_rows(found, held[group.rank])
    answers = [answers_of(one.rows, one.target, rank, case.shape) for rank, one in enumerate(held)]
    group.combine_send(flight, answers_of(found.rows, found.target, group.rank, case.shape))
    combined = group.combine_receive(flight)
    return right and torch.equal(combined, reference_combine(answers, step, case.shape, case.dtype)[group.rank])


def soak(group: ExpertGroup, link: Link) -> None:
    """(steps, seed) -> "right", or what was wrong: random sleeps, changing T, two flights at once."""
    num_steps, seed = link.recv()
    mine = Random(seed * 101 + group.rank)
    common = Random(seed)
    link.send(_soaked(group, num_steps, mine, common))


def _soaked(group: ExpertGroup, num_steps: int, mine: Random, common: Random) -> str:
    shape, under_way = group.shape, []
    for number in range(num_steps):
        tokens = [
            common.choice((0, 1, shape.max_tokens, common.randrange(shape.max_tokens))) for _ in range(shape.num_ranks)
        ]
        case = StepCase("", shape, tokens, common.choice((gaps, one_rank, repeated)), torch.float32)
        step = case.step(number)[group.rank]
        flight = group.dispatch_send(step.x, step.topk, step.weights)
        if mine.random() < 0.02:
            time.sleep(mine.random() * 0.01)
        under_way.append((flight, step))
        # Sometimes the next step leaves before this one is received.
        if common.random() < 0.5 and len(under_way) == 1 and number + 1 < num_steps:
            continue
        for flight, step in under_way:
            found = group.dispatch_receive(flight)
            # Expert e multiplies by e + 1.
            gains = torch.repeat_interleave(
                torch.arange(shape.local_experts), found.target.expert_counts.to(torch.int64)
            )
            group.combine_send(flight, found.rows.numbers * (gains + group.rank * shape.local_experts + 1).unsqueeze(1))
            combined = group.combine_receive(flight)
            factors = torch.where(step.topk >= 0, step.weights * (step.topk + 1), 0.0).sum(1, keepdim=True)
            if not torch.allclose(combined, step.x * factors, rtol=1e-4, atol=1e-4):
                return f"step {flight} is wrong"
        under_way.clear()
    return "right"


def step_until(group: ExpertGroup, link: Link) -> None:
    """Steps, telling each; the one of `rank` that is told a phase stops in it for good. Then what a RankGone says."""
    victim, phase = link.recv()
    shape = group.shape
    x, topk = torch.ones(2, shape.hidden_size), torch.arange(shape.top_k).expand(2, -1) % shape.num_experts
    try:
        for number in range(1_000_000):
            stops = group.rank == victim and number == 3
            if stops and phase is Phase.COUNTS:
                _stop(link)
            flight = group.dispatch_send(x, topk, torch.ones(topk.shape))
            if stops and phase is Phase.DISPATCH:
                _stop(link)
            found = group.dispatch_receive(flight)
            if stops and phase is Phase.COMBINE:
                _stop(link)
            group.combine_send(flight, found.rows.numbers)
            group.combine_receive(flight)
    except RankGone as error:
        link.send((time.monotonic(), group.status, error.message))
        link.recv()


def _stop(link: Link) -> None:
    link.send("here")
    time.sleep(3600)
