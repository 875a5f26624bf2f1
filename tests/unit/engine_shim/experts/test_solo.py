from dataclasses import replace

import pytest
import torch

from engine_shim.experts.reference import reference_combine, reference_dispatch
from engine_shim.experts.shape import ExpertNumerics
from engine_shim.experts.solo import SoloExperts
from router.contract.errors import BadRequest, BadSettings, Impossible
from tests.support.expert_steps import SMALL, StepCase, gaps, repeated
from tests.support.expert_worlds import answers_of, same_rows


@pytest.mark.parametrize("numerics", list(ExpertNumerics))
@pytest.mark.parametrize("choose", [gaps, repeated])
@pytest.mark.parametrize("tokens", [0, 1, 16])
def test_one_rank_gives_what_the_reference_gives(numerics: ExpertNumerics, choose, tokens: int) -> None:
    shape = replace(SMALL, num_ranks=1, numerics=numerics, expert_align=4)
    # In float32, which shows the one rounding of the de-duplicated partial sum.
    step = StepCase("", shape, (tokens,), choose, torch.float32).step()
    solo = SoloExperts(shape)

    flight = solo.dispatch_send(step[0].x, step[0].topk, step[0].weights)
    found = solo.dispatch_receive(flight)
    answers = answers_of(found.rows, found.target, 0, shape)
    solo.combine_send(flight, answers)

    assert same_rows(found, reference_dispatch(step, shape)[0])
    assert torch.equal(solo.combine_receive(flight), reference_combine([answers], step, shape, torch.float32)[0])


@pytest.mark.parametrize(("rows", "width", "num_tokens"), [(3, 0, None), (4, 1, None), (4, 0, 5), (4, 0, -1)])
def test_what_does_not_fit_is_refused(rows: int, width: int, num_tokens: int | None) -> None:
    shape = replace(SMALL, num_ranks=1)
    (given,) = StepCase("", shape, (4,), gaps).step()
    x = given.x[:rows, : shape.hidden_size - width]
    with pytest.raises(BadRequest, match="do not fit"):
        SoloExperts(shape).dispatch_send(x, given.topk, given.weights, num_tokens)


def test_answers_and_outputs_that_do_not_fit_are_refused() -> None:
    shape = replace(SMALL, num_ranks=1)
    (given,) = StepCase("", shape, (4,), repeated).step()
    solo = SoloExperts(shape)
    flight = solo.dispatch_send(given.x, given.topk, given.weights, num_tokens=2)
    with pytest.raises(Impossible, match="before its answers were sent"):
        solo.combine_receive(flight)
    answers = torch.ones(len(solo.dispatch_receive(flight).rows.numbers), shape.hidden_size)
    with pytest.raises(BadRequest, match="Answers must be"):
        solo.combine_send(flight, answers[1:])
    solo.combine_send(flight, answers)
    with pytest.raises(Impossible, match="has been answered"):
        solo.combine_send(flight, answers)
    out = torch.full((3, shape.hidden_size), 7.0)
    with pytest.raises(BadRequest, match="The output must be"):
        solo.combine_receive(flight, out[:1])
    assert (solo.combine_receive(flight, out)[2] == 7).all()
    assert (out[:2] != 7).all()


def test_the_only_rank_does_not_mask_itself() -> None:
    with pytest.raises(BadRequest, match="Rank 0"):
        SoloExperts(replace(SMALL, num_ranks=1)).mask(frozenset({0}))


def test_several_ranks_are_refused() -> None:
    with pytest.raises(BadSettings, match="4 ranks"):
        SoloExperts(SMALL)
