"""What rank processes do in tests: functions that a rank can be told by name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from engine_shim.bench.expert_processes import Link
from engine_shim.experts.group import ExpertGroup
from engine_shim.experts.port import Dispatched, Phase
from engine_shim.experts.quantise import Rows
from engine_shim.experts.reference import Held, RankTokens, reference_combine, reference_dispatch
from engine_shim.experts.transport import Put
from router.contract.errors import RankGone
from tests.support.expert_steps import StepCase, gaps, one_rank, repeated
from tests.support.expert_worlds import answers_of, same_rows


@dataclass(frozen=True)
class RightAnswer:
    """What one rank brings to a step, and what it must get."""

    tokens: RankTokens
    held: Held
    combined: torch.Tensor


def right_answers(case: StepCase, seed: int) -> list[RightAnswer]:
    """Of each rank, by the reference; computed once, since it is slow."""
    step = case.step(seed)
    held = reference_dispatch(step, case.shape)
    answers = [answers_of(one.rows, one.target, rank, case.shape) for rank, one in enumerate(held)]
    combined = reference_combine(answers, step, case.shape, case.dtype)
    return [RightAnswer(*parts) for parts in zip(step, held, combined, strict=True)]


def check_cases(group: ExpertGroup, link: Link) -> None:
    """One step for each RightAnswer that comes, and whether it was right: bytes of dispatch, bits of combine."""
    while (right := link.recv()) is not None:
        link.send(is_right(group, right))


def is_right(group: ExpertGroup, right: RightAnswer) -> bool:
    mine, device = right.tokens, group.device
    flight = group.dispatch_send(mine.x.to(device), mine.topk.to(device), mine.weights.to(device))
    there = group.dispatch_receive(flight)
    found = Dispatched(Rows(there.rows.numbers.cpu(), there.rows.scales.cpu()), there.target)
    group.combine_send(flight, answers_of(found.rows, found.target, group.rank, group.shape).to(device))
    combined = group.combine_receive(flight)
    return same_rows(found, right.held) and torch.equal(combined.cpu(), right.combined)


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
    """Steps; rank `victim` says all of step LAST_STEP that comes before `phase`, tells it and stops for good.

    The others tell what a RankGone says.
    """
    victim, phase = link.recv()
    shape = group.shape
    x, topk = torch.ones(2, shape.hidden_size), torch.arange(shape.top_k).expand(2, -1) % shape.num_experts
    if group.rank == victim:
        _stop_before(group, phase, link)
    try:
        while True:
            flight = group.dispatch_send(x, topk, torch.ones(topk.shape))
            found = group.dispatch_receive(flight)
            group.combine_send(flight, found.rows.numbers)
            group.combine_receive(flight)
    except RankGone as error:
        link.send((time.monotonic(), group.status, error.message))
        link.recv()


LAST_STEP = 4


def _stop_before(group: ExpertGroup, phase: Phase, link: Link) -> None:
    transport = group._exchange.transport
    scatter = transport.scatter

    def stopping(puts: Sequence[Put]) -> None:
        scatter([put for put in puts if put.signal.epoch < LAST_STEP or put.signal.phase is not phase])
        if any(put.signal.epoch == LAST_STEP and put.signal.phase is phase for put in puts):
            while transport.busy:
                transport.poll()
            link.send("here")
            time.sleep(3600)

    setattr(transport, "scatter", stopping)  # noqa: B010 - a method is replaced
