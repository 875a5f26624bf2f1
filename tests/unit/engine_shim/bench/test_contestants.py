from __future__ import annotations

import pytest

from engine_shim.bench.contestants import (
    Workload,
    reference_engine,
    run_reference,
    run_transformers,
    transformers_model,
)
from tests.support.tiny_models import ask, generate, prompt_of, tiny_engine, write_tiny_llama

WORK = Workload([list(prompt_of(20, seed=1)), list(prompt_of(20, seed=2))], 6)


@pytest.fixture
def model(tmp_path):
    write_tiny_llama(tmp_path)
    return str(tmp_path)


def test_both_sides_generate_the_same_tokens_and_time_both_phases(model):
    expected = [generate(tiny_engine(), ask("a", prompt, max_tokens=6))[0] for prompt in WORK.prompts]
    engine = reference_engine(model, 1, "invariant", 200)
    for timing in (run_reference(engine, WORK), run_transformers(transformers_model(model), WORK)):
        assert timing.tokens == expected
        assert timing.prefill_s > 0
        assert timing.decode_s > 0
    assert run_reference(engine, WORK).tokens == expected
    assert engine.load().prefix_hit_tokens == 0
