"""The specification against the float64 oracle: what it gives must be right before anything is compared with it."""

import pytest
import torch

from engine_shim.experts.oracle import affine_experts, combine_bound, exact_sum, oracle_moe
from engine_shim.experts.plan import expert_plan
from engine_shim.experts.quantise import DTYPES, pack_rows, unpack_rows
from engine_shim.experts.reference import Held, RankTokens, counts_of, reference_combine, reference_dispatch
from engine_shim.experts.shape import ExpertShape, RowFormat
from tests.support.expert_steps import STEP_CASES, StepCase


def answers_of(held: Held, rank: int, shape: ExpertShape, seed: int = 0) -> torch.Tensor:
    """What affine experts say to each slot; NaN in padding, which must not be looked at."""
    experts = affine_experts(shape.num_experts, shape.hidden_size, seed)
    answers = torch.full((len(held.origins), shape.hidden_size), torch.nan)
    offsets, counts = held.target.expert_offsets.tolist(), held.target.expert_counts.tolist()
    x = unpack_rows(held.rows)
    for local, count in enumerate(counts):
        part = slice(offsets[local], offsets[local] + count)
        chosen = torch.full((count,), rank * shape.local_experts + local)
        answers[part] = experts.answer(x[part], chosen).float()
    return answers


def travelled(answers: list[torch.Tensor], tokens: RankTokens, source: int, case: StepCase) -> torch.Tensor:
    """[T, K, H] answers of one rank's tokens after rounding to combine_format."""
    plan = expert_plan(tokens.topk, counts_of(case.step(), case.shape), source, case.shape)
    rows = torch.zeros(*tokens.topk.shape, case.shape.hidden_size)
    for token, k in torch.nonzero(plan.slots >= 0).tolist():
        rows[token, k] = answers[int(plan.ranks[token, k])][int(plan.slots[token, k])]
    return rows.to(DTYPES[case.shape.combine_format]).float()


@pytest.mark.parametrize("case", STEP_CASES, ids=lambda case: case.name)
def test_dispatch_then_experts_then_combine_is_the_dense_mixture(case: StepCase) -> None:
    step, shape = case.step(), case.shape
    held = reference_dispatch(step, shape)
    answers = [answers_of(one, rank, shape) for rank, one in enumerate(held)]
    out = reference_combine(answers, step, shape, torch.bfloat16)
    experts = affine_experts(shape.num_experts, shape.hidden_size, 0)

    for source, tokens in enumerate(step):
        rows = travelled(answers, tokens, source, case)
        bound = combine_bound(rows, tokens, shape, RowFormat.BF16)
        assert ((out[source].double() - exact_sum(rows, tokens)).abs() <= bound).all()
        # The whole path: what the answers lost when they were rounded comes on top.
        x = unpack_rows(pack_rows(tokens.x, shape.dispatch_format))
        dense = oracle_moe(x, tokens, experts)
        lost = 2.0**-8 * (1 + 2.0**-7) * (rows.abs() * tokens.weights.abs().unsqueeze(-1)).sum(1).double()
        assert ((out[source].double() - dense).abs() <= bound + lost + 1e-30).all()


def test_the_bound_tells_right_from_wrong() -> None:
    """A sum with two weights swapped is outside of it."""
    case = next(case for case in STEP_CASES if case.name.startswith("uniform, exact"))
    step, shape = case.step(), case.shape
    answers = [answers_of(one, rank, shape) for rank, one in enumerate(reference_dispatch(step, shape))]
    rows = travelled(answers, step[0], 0, case)
    bound = combine_bound(rows, step[0], shape, RowFormat.BF16)
    swapped = RankTokens(step[0].x, step[0].topk, step[0].weights[:, [1, 0, 2, 3]])
    assert ((exact_sum(rows, swapped) - exact_sum(rows, step[0])).abs() > bound).any()


def test_exact_numerics_do_not_depend_on_the_number_of_ranks() -> None:
    tokens, outs = [16], []
    for num_ranks in (1, 2, 4):
        shape = ExpertShape(num_ranks, 16, 4, 128, 16)
        case = StepCase("", shape, tokens + [0] * (num_ranks - 1))
        step = case.step()
        answers = [answers_of(one, rank, shape) for rank, one in enumerate(reference_dispatch(step, shape))]
        outs.append(reference_combine(answers, step, shape, torch.float32)[0])
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
