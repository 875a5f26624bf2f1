"""The protocol over the adversarial network in one process: every shape, and thousands of seeds."""

import os
from dataclasses import replace

import pytest
import torch

from engine_shim.experts.exchange import Exchange
from engine_shim.experts.local import LocalNetwork, _Piece
from engine_shim.experts.reference import RankTokens, reference_combine, reference_dispatch
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from engine_shim.experts.transport import Put
from tests.support.expert_steps import EIGHT_CASES, STEP_CASES, StepCase, gaps, one_rank, repeated
from tests.support.expert_worlds import World, answers_of, same_rows

TINY = ExpertShape(
    num_ranks=2,
    num_experts=4,
    top_k=2,
    hidden_size=4,
    max_tokens=3,
    dispatch_format=RowFormat.F32,
    combine_format=RowFormat.F32,
)
NUM_SEEDS = int(os.environ.get("TANDEM_TEST_EXPERT_SEEDS", "1000"))
"""Of each numerics."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def expected(step: list[RankTokens], shape: ExpertShape) -> tuple[list, list[torch.Tensor]]:
    held = reference_dispatch(step, shape)
    answers = [answers_of(one.rows, one.target, rank, shape) for rank, one in enumerate(held)]
    return held, reference_combine(answers, step, shape, step[0].x.dtype)


def check(world: World, number: int, right: tuple[list, list[torch.Tensor]]) -> None:
    for rank in world.living:
        assert same_rows(world.dispatched[rank][number], right[0][rank])
        assert torch.equal(world.combined[rank][number], right[1][rank]), "bit by bit"


@pytest.mark.parametrize("case", [*STEP_CASES, *EIGHT_CASES], ids=lambda case: case.name)
def test_every_shape(case: StepCase) -> None:
    step = case.step()
    world = World(case.shape, seed=1)
    world.run([step])
    check(world, 1, expected(step, case.shape))


def without(step: list[RankTokens], dead: frozenset[int], shape: ExpertShape) -> list[RankTokens]:
    """The step as it is when these ranks bring nothing and nobody chooses their experts."""
    left = []
    for rank, tokens in enumerate(step):
        lost = torch.isin(tokens.topk // shape.local_experts, torch.tensor(sorted(dead)))
        live = 0 if rank in dead else len(tokens.topk)
        left.append(RankTokens(tokens.x[:live], tokens.topk.masked_fill(lost, -1)[:live], tokens.weights[:live]))
    return left


@pytest.mark.parametrize("dead", [{3}, {0, 2}, {0, 1, 3}], ids=lambda dead: f"{len(dead)} of 4")
@pytest.mark.parametrize("numerics", list(ExpertNumerics))
def test_the_rest_goes_on_without_masked_ranks(numerics: ExpertNumerics, dead: set[int]) -> None:
    shape = replace(TINY, numerics=numerics, num_ranks=4, num_experts=8, expert_align=4)
    steps = [
        StepCase("", shape, (3, 2, 3, 1), choose, torch.float32).step(number)
        for number, choose in enumerate((repeated, gaps, one_rank))
    ]
    right = [expected(without(step, frozenset(dead), shape), shape) for step in steps]
    for seed in range(10):
        world = World(shape, seed, private_rows=1 + seed % 3, dead=frozenset(dead))
        world.run(steps)
        for number, one in enumerate(right, start=1):
            check(world, number, one)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("pairs", [1, 4])
@pytest.mark.parametrize("numerics", list(ExpertNumerics))
def test_no_order_of_landings_changes_a_bit(numerics: ExpertNumerics, pairs: int) -> None:
    shape = replace(TINY, numerics=numerics, num_ranks=2 * pairs, num_experts=4 * pairs)
    cases = [
        StepCase("", shape, tokens * pairs, choose, torch.float32)
        for tokens, choose in (((3, 2), repeated), ((0, 3), gaps), ((3, 3), one_rank))
    ]
    steps = [case.step() for case in cases]
    right = [expected(step, shape) for step in steps]
    for seed in range(NUM_SEEDS // pairs):
        # As few private rows as can be: nearly every step overflows.
        world = World(shape, seed, flights=1 + seed % 2, private_rows=1 + seed % 3)
        world.run(steps)
        for number, one in enumerate(right, start=1):
            check(world, number, one)


def broken(world: World, steps: list[list[RankTokens]], right: list[tuple[list, list[torch.Tensor]]]) -> bool:
    try:
        world.run(steps, most_moves=3000)
        for number, one in enumerate(right, start=1):
            check(world, number, one)
    except (AssertionError, RuntimeError, IndexError, ValueError):
        return True
    return False


@pytest.mark.parametrize("safeguard", ["epochs share no memory", "all rows are awaited", "a signal follows its bytes"])
def test_without_a_safeguard_the_network_breaks_it(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [StepCase("", TINY, (3, 3), choose, torch.float32).step(i) for i, choose in enumerate((repeated, gaps) * 2)]
    right = [expected(step, TINY) for step in steps]
    assert not broken(World(TINY, 0, private_rows=1), steps, right)
    if safeguard == "epochs share no memory":
        monkeypatch.setattr(Exchange, "has_room", True)
    elif safeguard == "all rows are awaited":
        monkeypatch.setattr(Exchange, "missing", lambda self, flight: frozenset())
    else:
        monkeypatch.setattr(LocalNetwork, "send", tell_first)
    assert any(broken(World(TINY, seed, private_rows=1), steps, right) for seed in range(20))


def tell_first(network: LocalNetwork, source: int, put: Put) -> None:
    """What a network does that signals a Put when it is posted."""
    network._landed[put.peer].append((source, put.signal))
    if put.num_bytes:
        network._pieces.append(_Piece(source, put, 0, put.num_bytes, [2]))
