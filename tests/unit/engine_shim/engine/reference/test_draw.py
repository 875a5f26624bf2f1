from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from engine_shim.engine.port import SamplingParams
from engine_shim.engine.reference.draw import draw, uniform

PROBABILITIES = [0.05, 0.4, 0.1, 0.25, 0.2]
ROW = torch.tensor(PROBABILITIES).log() + 3


def shares(row=ROW, num_draws=500, **sampling) -> dict[int, float]:
    """Relative frequency of each token over evenly spread numbers."""
    params = SamplingParams(max_tokens=1, **sampling)
    counts = Counter(int(draw(row, params, (index + 0.5) / num_draws)) for index in range(num_draws))
    return {token: count / num_draws for token, count in counts.items()}


def renormalised(*tokens: int) -> dict[int, float]:
    total = sum(PROBABILITIES[token] for token in tokens)
    return pytest.approx({token: PROBABILITIES[token] / total for token in tokens}, abs=3e-3)


def test_tokens_come_with_their_probabilities():
    assert shares() == renormalised(0, 1, 2, 3, 4)


def test_temperature_sharpens_and_flattens():
    squared = {token: p**2 for token, p in enumerate(PROBABILITIES)}
    total = sum(squared.values())
    assert shares(temperature=0.5) == pytest.approx({token: p / total for token, p in squared.items()}, abs=3e-3)
    assert shares(temperature=1e-4) == {1: 1.0}


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, (1, 3)),
        ({"top_k": 100}, (0, 1, 2, 3, 4)),
        ({"top_p": 0.39}, (1,)),
        ({"top_p": 0.41}, (1, 3)),
        ({"top_p": 0.66}, (1, 3, 4)),
        ({"min_p": 0.3}, (1, 3, 4)),
        ({"min_p": 1.0}, (1,)),
        ({"top_k": 3, "top_p": 0.7}, (1, 3)),
        ({"top_k": 3, "top_p": 0.8}, (1, 3, 4)),
        ({"top_p": 0.9, "min_p": 0.6}, (1, 3)),
    ],
    ids=str,
)
def test_only_what_is_kept_is_drawn(sampling, kept):
    assert shares(**sampling) == renormalised(*kept)


def test_a_flat_distribution_needs_more_than_the_first_sorted_tokens():
    row = torch.zeros(1000)
    assert len(shares(row, num_draws=900, top_p=0.9)) == 900
    assert len(shares(row, num_draws=20, top_p=1e-9)) == 1


def test_tokens_without_probability_are_never_drawn():
    row = torch.tensor([-math.inf, 0.0, -math.inf])
    for number in (0.0, 0.5, 1 - 2.0**-53):
        assert int(draw(row, SamplingParams(1), number)) == 1


def test_numbers_are_uniform_and_depend_on_seed_and_index_alone():
    numbers = [uniform(seed, index) for seed in range(20) for index in range(100)]
    assert min(numbers) >= 0
    assert max(numbers) < 1
    assert len(set(numbers)) == 2000
    assert sum(numbers) / 2000 == pytest.approx(0.5, abs=0.02)
    assert uniform(3, 4) == numbers[304]
    assert uniform(-1, 0) != uniform(1, 0)
