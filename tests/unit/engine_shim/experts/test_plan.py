import pytest
import torch

from engine_shim.experts.plan import expert_plan, first_slots, route, target_plan
from engine_shim.experts.reference import counts_of
from engine_shim.experts.shape import ExpertShape, RowFormat
from router.contract.errors import BadRequest
from tests.support.expert_steps import STEP_CASES, StepCase

TWO = ExpertShape(2, 4, 2, 128, 4, expert_align=4)
"""Ranks 0 and 1 hold experts 0, 1 and 2, 3."""


def test_a_route_by_hand() -> None:
    topk = torch.tensor([[2, 0], [0, -1], [0, 3]])

    one = route(topk, TWO)

    assert one.counts.tolist() == [3, 0, 1, 1]
    assert one.offsets.tolist() == [0, 3, 3, 4, 5]
    assert one.order.tolist() == [1, 2, 4, 0, 5], "expert 0's from tokens 0, 1, 2; then expert 2's; then expert 3's"
    assert one.places.tolist() == [[3, 0], [1, -1], [2, 4]]
    assert one.rank_counts.tolist() == [3, 2]
    assert one.rank_order.tolist() == [0, 1, 2, 0, 2]
    assert one.rank_places.tolist() == [[0, 3], [1, -1], [2, 4]]


def test_slots_by_hand() -> None:
    counts = torch.tensor([[3, 0, 1, 1], [2, 0, 0, 5]])

    assert target_plan(counts, 0, TWO).expert_counts.tolist() == [5, 0]
    assert target_plan(counts, 0, TWO).expert_offsets.tolist() == [0, 8, 8]
    assert target_plan(counts, 1, TWO).expert_offsets.tolist() == [0, 4, 12]
    assert first_slots(counts, TWO).tolist() == [[0, 8, 0, 4], [3, 8, 1, 5]]
    plan = expert_plan(torch.tensor([[2, 0], [0, -1], [0, 3]]), counts, 0, TWO)
    assert plan.ranks.tolist() == [[1, 0], [0, -1], [0, 1]]
    assert plan.slots.tolist() == [[0, 0], [1, -1], [2, 4]]


@pytest.mark.parametrize("case", STEP_CASES, ids=lambda case: case.name)
def test_slots_are_what_counting_row_by_row_gives(case: StepCase) -> None:
    step, shape = case.step(), case.shape
    counts = counts_of(step, shape)
    taken: dict[tuple[int, int], tuple[int, int, int]] = {}
    for source, tokens in enumerate(step):
        plan = expert_plan(tokens.topk, counts, source, shape)
        for token, row in enumerate(tokens.topk.tolist()):
            for k, expert in enumerate(row):
                at = (int(plan.ranks[token, k]), int(plan.slots[token, k]))
                if expert < 0:
                    assert at == (-1, -1)
                    continue
                assert at not in taken
                taken[at] = (expert, source, token * shape.top_k + k)
    for rank in range(shape.num_ranks):
        offsets = target_plan(counts, rank, shape).expert_offsets.tolist()
        assert all(offset % shape.expert_align == 0 for offset in offsets)
        assert offsets[-1] <= shape.capacity_rows
        here = sorted((slot, what) for (at, slot), what in taken.items() if at == rank)
        assert [what for _, what in here] == sorted(what for _, what in here), "by expert, source, token, k"
        for slot, (expert, _, _) in here:
            local = expert - rank * shape.local_experts
            count = int(counts[:, expert].sum())
            assert offsets[local] <= slot < offsets[local] + count


@pytest.mark.parametrize("case", STEP_CASES, ids=lambda case: case.name)
def test_places_are_the_inverse_of_the_order(case: StepCase) -> None:
    for tokens in case.step():
        one = route(tokens.topk, case.shape)
        assert one.places.view(-1)[one.order].tolist() == list(range(len(one.order)))
        assert int((one.places >= 0).sum()) == len(one.order) == int(one.counts.sum())
        assert int((one.rank_places >= 0).sum()) == len(one.rank_order) == int(one.rank_counts.sum())
        wanted = {
            (t, e // case.shape.local_experts) for t, row in enumerate(tokens.topk.tolist()) for e in row if e >= 0
        }
        assert {tuple(at) for at in torch.nonzero(one.rank_places >= 0).tolist()} == wanted
        assert len(one.rank_order) <= case.shape.max_tokens * min(case.shape.top_k, case.shape.num_ranks)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.uint32, torch.uint64])
def test_choices_may_be_any_integers(dtype: torch.dtype) -> None:
    assert route(torch.tensor([[3, 2]]).to(dtype), TWO).counts.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("topk", "words"),
    [
        (torch.zeros(5, 2, dtype=torch.int64), "5 tokens"),
        (torch.zeros(1, 3, dtype=torch.int64), "[1, 3]"),
        (torch.zeros(1, 2), "integers"),
        (torch.zeros(1, 2, dtype=torch.bool), "integers"),
        (torch.zeros(1, 2, dtype=torch.complex64), "integers"),
        (torch.tensor([[4, 0]]), "outside"),
        (torch.tensor([[-2, 0]]), "outside"),
    ],
)
def test_choices_that_do_not_fit_are_refused(topk: torch.Tensor, words: str) -> None:
    with pytest.raises(BadRequest, match=words.replace("[", r"\[")):
        route(topk, TWO)


def test_formats_do_not_change_a_plan() -> None:
    shape = ExpertShape(2, 4, 2, 128, 4, dispatch_format=RowFormat.BF16, expert_align=4)
    topk = torch.tensor([[2, 0], [0, -1]])
    assert route(topk, shape).order.tolist() == route(topk, TWO).order.tolist()
