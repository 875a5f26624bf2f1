from __future__ import annotations

import pytest

from engine_shim.engine.port import Purpose, SamplingParams
from engine_shim.serve.intake import Endpoint, Intake, Prompt, Wishes
from router.contract.instance import Mode
from router.contract.wire import DecodeHandoff, PrefillHandoff


def intake(*, n=1, seed=None, handoff=None, endpoint=Endpoint.COMPLETION):
    prompts = (Prompt((1, 2), None), Prompt((3,), "x"))
    return Intake(endpoint, "r1", prompts, n, SamplingParams(5, seed=seed), Wishes(), handoff, 9.0)


@pytest.mark.parametrize(("endpoint", "expected"), [(Endpoint.CHAT, "chatcmpl-r1"), (Endpoint.COMPLETION, "cmpl-r1")])
def test_the_response_id_follows_the_endpoint(endpoint, expected):
    assert intake(endpoint=endpoint).response_id == expected


def test_choices_count_through_prompts_and_their_repetitions():
    asked = intake(n=2)
    assert asked.num_choices == 4
    assert [asked.sequence(choice).prompt for choice in range(4)] == [(1, 2), (1, 2), (3,), (3,)]
    assert [asked.sequence(choice).seq_id for choice in range(4)] == [f"r1#{choice}" for choice in range(4)]


def test_seeds_count_up_within_a_prompt_and_stay_in_64_bits():
    seeds = [intake(n=2, seed=7).sequence(choice).sampling.seed for choice in range(4)]
    assert seeds == [7, 8, 7, 8]
    assert intake(n=2, seed=2**63 - 1).sequence(1).sampling.seed == -(2**63)
    assert intake(n=2).sequence(1).sampling.seed is None


@pytest.mark.parametrize(
    ("handoff", "purpose"),
    [
        (None, Purpose.GENERATE),
        (PrefillHandoff("t"), Purpose.HOLD),
        (DecodeHandoff("t", Mode.PUSH, "e", "h", 1), Purpose.RECEIVE),
    ],
)
def test_the_purpose_follows_the_handoff(handoff, purpose):
    assert intake(handoff=handoff).sequence(0).purpose is purpose
