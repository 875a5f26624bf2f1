from __future__ import annotations

import math

import pytest
import torch

from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.draw import uniform
from engine_shim.engine.reference.sampler import Sampled, Sampler
from engine_shim.engine.reference.sequence import Sequence
from engine_shim.engine.reference.text_stream import TextStream
from router.contract.errors import EngineDown
from tests.support.tiny_models import ask, tiny_tokenizer

ROW = torch.tensor([0.1, 0.4, 0.4, 0.1]).log()


def sequence(seed: int = 0, **sampling) -> Sequence:
    request = ask("a", (0,), **sampling)
    return Sequence(request, seed, BlockNames(4), TextStream(tiny_tokenizer(), request.sampling))


def sample(*sequences: Sequence, row: torch.Tensor = ROW):
    return Sampler((3,)).sample(row.repeat(len(sequences), 1), sequences)


def test_greedy_takes_the_lowest_of_equal_maxima():
    assert sample(sequence(), sequence(temperature=1e-6)) == [Sampled(1), Sampled(1)]


def test_each_row_follows_its_own_sequence():
    greedy, biased, drawn = sample(
        sequence(), sequence(logit_bias=((3, 9.0),)), sequence(seed=5, temperature=1.0, top_k=1, logit_bias=((0, 9.0),))
    )
    assert (greedy, biased, drawn) == (Sampled(1), Sampled(3), Sampled(0))


def test_a_drawn_token_is_the_one_under_the_number_of_seed_and_index():
    number = uniform(5, 0)
    expected = next(token for token, end in enumerate([0.1, 0.5, 0.9, 1.0]) if number < end)
    assert sample(sequence(seed=5, temperature=1.0)) == [Sampled(expected)]


def test_log_probabilities_are_those_of_the_untouched_row():
    (sampled,) = sample(sequence(logit_bias=((3, 9.0),), logprobs=1))
    assert isinstance(sampled, Sampled)
    assert sampled.logprob is not None
    assert (sampled.token_id, sampled.logprob.token_id) == (3, 3)
    assert sampled.logprob.logprob == pytest.approx(math.log(0.1), abs=1e-6)
    assert sampled.logprob.top[0][1] == pytest.approx(math.log(0.4), abs=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_no_distribution_fails_instead_of_answering(value):
    broken = ROW.clone()
    broken[2] = value
    for request in (sequence(), sequence(temperature=1.0)):
        (failure,) = sample(request, row=broken)
        assert isinstance(failure, EngineDown)


def test_a_row_without_an_allowed_token_fails():
    (failure,) = sample(sequence(logit_bias=tuple((token, -math.inf) for token in range(4))))
    assert isinstance(failure, EngineDown)


def test_a_failure_is_of_its_own_row():
    good, bad = sample(sequence(), sequence(logit_bias=((99, 1.0),)))
    assert good == Sampled(1)
    assert isinstance(bad, EngineDown)
