"""The same protocol between processes, over NIXL in host memory."""

import os
import signal
import time
from dataclasses import replace

import pytest

from engine_shim.bench.expert_processes import crew_of
from engine_shim.experts.port import Phase
from engine_shim.experts.regions import plan_regions
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from tests.support.expert_halves import compute_in_halves, tiny_shape
from tests.support.expert_ranks import LAST_STEP, check_cases, right_answers, soak, step_until
from tests.support.expert_steps import EIGHT, EIGHT_CASES, SMALL, STEP_CASES

pytestmark = [pytest.mark.needs("nixl"), pytest.mark.timeout(300)]

PLAIN = ExpertShape(2, 4, 2, 16, 4, dispatch_format=RowFormat.F32, combine_format=RowFormat.F32)
SOAK_STEPS = int(os.environ.get("TANDEM_TEST_EXPERT_STEPS", "150"))
WAIT_FOR_S = 2.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.needs("gpu"), id="gpu")])
@pytest.mark.parametrize("four_or_eight", [SMALL, EIGHT], ids=lambda shape: f"{shape.num_ranks} ranks")
@pytest.mark.parametrize("numerics", list(ExpertNumerics))
def test_steps_between_processes_are_the_reference_s(
    numerics: ExpertNumerics, four_or_eight: ExpertShape, device: str
) -> None:
    shape = replace(four_or_eight, numerics=numerics)
    cases = [case for case in (*STEP_CASES, *EIGHT_CASES) if case.shape == shape]
    assert len(cases) > 8
    with crew_of(plan_regions(shape, private_rows=5), check_cases, wait_for_s=60, device=device) as crew:
        for case in cases:
            for link, right in zip(crew.links, right_answers(case, seed=1), strict=True):
                link.send(right)
            assert all(crew.receive(rank, 60) for rank in range(shape.num_ranks)), case.name


@pytest.mark.timeout(4000)
def test_a_soak_with_sleeps_and_changing_tokens() -> None:
    with crew_of(plan_regions(PLAIN, private_rows=2), soak, wait_for_s=60) as crew:
        for link in crew.links:
            link.send((SOAK_STEPS, 7))
        assert [crew.receive(rank, 3600) for rank in range(2)] == ["right", "right"]


def test_a_model_in_halves_is_the_whole_model() -> None:
    with crew_of(plan_regions(tiny_shape(2)), compute_in_halves, wait_for_s=60) as crew:
        assert [crew.receive(rank, 120) for rank in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("num_ranks", "phase"),
    [*((2, phase) for phase in (Phase.COUNTS, Phase.DISPATCH, Phase.OVERFLOW, Phase.COMBINE)), (8, Phase.COMBINE)],
)
def test_a_rank_that_is_killed_is_reported_in_time(num_ranks: int, phase: Phase) -> None:
    regions = plan_regions(replace(PLAIN, num_ranks=num_ranks, num_experts=2 * num_ranks), private_rows=1)
    with crew_of(regions, step_until, wait_for_s=WAIT_FOR_S) as crew:
        for link in crew.links:
            link.send((1, phase))
        assert crew.receive(1, 60) == "here"
        os.kill(crew.processes[1].pid or 0, signal.SIGKILL)
        killed_at = time.monotonic()
        told = [crew.receive(rank, 60) for rank in range(num_ranks) if rank != 1]
    for reported_at, status, sentence in told:
        assert (status.epoch, status.peer) == (LAST_STEP, 1)
        # One of them misses it; to the others that one may be the first to say so.
        assert status.phase in (phase, Phase.REFUSED)
        assert "rank 1" in sentence
        assert reported_at - killed_at < WAIT_FOR_S + 1
    assert any(status.phase is phase for _, status, _ in told)
