from __future__ import annotations

from engine_shim.engine.port import SamplingParams, TokensOut
from engine_shim.serve.intake import Endpoint, Intake, Prompt, Wishes
from engine_shim.serve.usage import PromptDetails, Tally, Usage


def test_prompts_count_once_and_cache_hits_by_the_first_choice():
    prompts = (Prompt((1, 2, 3), None), Prompt((4,), None))
    tally = Tally(Intake(Endpoint.COMPLETION, "r", prompts, 2, SamplingParams(5), Wishes(), None, 1.0))
    assert tally.usage() == Usage(4, 0, 4, PromptDetails(0))
    tally.take(0, TokensOut("s", (7, 8), "", num_cached_tokens=2))
    tally.take(1, TokensOut("s", (7,), "", num_cached_tokens=3))
    tally.take(2, TokensOut("s", (7,), "", num_cached_tokens=1))
    tally.take(0, TokensOut("s", (9,), ""))
    assert tally.usage() == Usage(4, 5, 9, PromptDetails(3))
