"""The Triton twins against the specification, bit by bit; on the CPU by Triton's interpreter (`make twins`)."""

from __future__ import annotations

import pytest
import torch

from engine_shim.experts.reference import RankTokens, reference_combine, reference_dispatch
from tests.support.expert_steps import STEP_CASES, StepCase
from tests.support.expert_worlds import answers_of, same_rows

pytestmark = pytest.mark.needs("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def there(tokens: RankTokens) -> RankTokens:
    return RankTokens(tokens.x.to(DEVICE), tokens.topk.to(DEVICE), tokens.weights.to(DEVICE))


@pytest.mark.parametrize("case", STEP_CASES, ids=lambda case: case.name)
def test_every_bit_is_the_specification_s(case: StepCase) -> None:
    from engine_shim.experts.twins.group import TwinGroup

    step = case.step(seed=1)
    group = TwinGroup(case.shape, DEVICE)
    found, held = group.dispatch([there(tokens) for tokens in step]), reference_dispatch(step, case.shape)
    answers = []
    for rank, (ours, right) in enumerate(zip(found, held, strict=True)):
        assert same_rows(on_cpu(ours), right)
        answers.append(answers_of(right.rows, right.target, rank, case.shape))
    sums = group.combine([one.to(DEVICE) for one in answers], case.dtype)
    for ours, right in zip(sums, reference_combine(answers, step, case.shape, case.dtype), strict=True):
        assert torch.equal(ours.cpu(), right)


def on_cpu(held):
    from dataclasses import replace

    rows = replace(held.rows, numbers=held.rows.numbers.cpu(), scales=held.rows.scales.cpu())
    fields = {name: getattr(held.target, name).cpu() for name in held.target.__slots__}
    return replace(held, rows=rows, target=replace(held.target, **fields))
