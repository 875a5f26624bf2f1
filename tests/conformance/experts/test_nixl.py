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
from tests.support.expert_steps import SMALL, STEP_CASES

pytestmark = [pytest.mark.needs("nixl"), pytest.mark.timeout(300)]

PLAIN = ExpertShape(2, 4, 2, 16, 4, dispatch_format=RowFormat.F32, combine_format=RowFormat.F32)
SOAK_STEPS = int(os.environ.get("TANDEM_TEST_EXPERT_STEPS", "150"))
WAIT_FOR_S = 2.0


@pytest.mark.parametrize("numerics", list(ExpertNumerics))
def test_steps_between_processes_are_the_reference_s(numerics: ExpertNumerics) -> None:
    shape = replace(SMALL, numerics=numerics)
    cases = [case for case in STEP_CASES if case.shape == shape]
    assert len(cases) > 8
    with crew_of(plan_regions(shape, private_rows=5), check_cases, wait_for_s=60) as crew:
        for case in cases:
            for link, right in zip(crew.links, right_answers(case, seed=1), strict=True):
                link.send(right)
            assert [crew.receive(rank, 60) for rank in range(4)] == [True] * 4, case.name


@pytest.mark.needs("gpu")
@pytest.mark.parametrize("numerics", list(ExpertNumerics))
def test_steps_between_processes_in_gpu_memory_are_the_reference_s(numerics: ExpertNumerics) -> None:
    shape = replace(SMALL, numerics=numerics)
    cases = [case for case in STEP_CASES if case.shape == shape]
    with crew_of(plan_regions(shape, private_rows=5), check_cases, wait_for_s=60, device="cuda:0") as crew:
        for case in cases:
            for link, right in zip(crew.links, right_answers(case, seed=1), strict=True):
                link.send(right)
            assert [crew.receive(rank, 60) for rank in range(4)] == [True] * 4, case.name


@pytest.mark.timeout(4000)
def test_a_soak_with_sleeps_and_changing_tokens() -> None:
    with crew_of(plan_regions(PLAIN, private_rows=2), soak, wait_for_s=60) as crew:
        for link in crew.links:
            link.send((SOAK_STEPS, 7))
        assert [crew.receive(rank, 3600) for rank in range(2)] == ["right", "right"]


def test_a_model_in_halves_is_the_whole_model() -> None:
    with crew_of(plan_regions(tiny_shape(2)), compute_in_halves, wait_for_s=60) as crew:
        assert [crew.receive(rank, 120) for rank in range(2)] == [True, True]


@pytest.mark.parametrize("phase", [Phase.COUNTS, Phase.DISPATCH, Phase.OVERFLOW, Phase.COMBINE])
def test_a_rank_that_is_killed_is_reported_in_time(phase: Phase) -> None:
    with crew_of(plan_regions(PLAIN, private_rows=1), step_until, wait_for_s=WAIT_FOR_S) as crew:
        for link in crew.links:
            link.send((1, phase))
        assert crew.receive(1, 60) == "here"
        os.kill(crew.processes[1].pid or 0, signal.SIGKILL)
        killed_at = time.monotonic()
        reported_at, status, sentence = crew.receive(0, 60)
    assert (status.epoch, status.phase, status.peer) == (LAST_STEP, phase, 1)
    assert "rank 1" in sentence
    assert reported_at - killed_at < WAIT_FOR_S + 1
