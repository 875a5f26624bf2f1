from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine_shim.engine.reference.config import RopeScaling
from engine_shim.engine.reference.rope import RopeTable, frequencies_of
from tests.support.tiny_models import TINY_LLAMA


def test_pairs_are_turned_by_position_times_frequency():
    frequencies = torch.tensor([1.0, 0.25])
    table = RopeTable(frequencies, 10, torch.float32)
    heads = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    turned = table.turn(heads, table.at(torch.tensor([3])))[0, 0]
    assert turned.tolist() == pytest.approx([math.cos(3), -2 * math.sin(0.75), math.sin(3), 2 * math.cos(0.75)], 1e-6)


def test_scores_depend_on_the_distance_alone():
    table = RopeTable(frequencies_of(TINY_LLAMA), 100, torch.float32)
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def score(at, to):
        return float(
            (table.turn(query, table.at(torch.tensor([at]))) * table.turn(key, table.at(torch.tensor([to])))).sum()
        )

    assert score(7, 3) == pytest.approx(score(90, 86), abs=1e-5)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-3)


def test_frequencies_fall_geometrically():
    assert frequencies_of(TINY_LLAMA).tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_linear_scaling_and_stored_divisors_divide():
    linear = replace(TINY_LLAMA, rope_scaling=RopeScaling("linear", 4.0))
    assert frequencies_of(linear).tolist() == pytest.approx([0.25, 0.025, 0.0025, 0.00025])
    divisors = torch.tensor([1.0, 1.0, 2.0, 8.0])
    assert frequencies_of(TINY_LLAMA, divisors).tolist() == pytest.approx([1.0, 0.1, 0.005, 0.000125])


def test_llama3_keeps_short_wavelengths_divides_long_ones_and_blends_between():
    scaled = replace(TINY_LLAMA, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 1024))
    # Turns over 1024 tokens: 163, 16.3, 1.63, 0.163; below 1 is divided, above 4 kept.
    kept = (1024 * 0.01 / (2 * math.pi) - 1) / 3
    blended = 0.01 * kept + 0.01 / 8 * (1 - kept)
    assert frequencies_of(scaled).tolist() == pytest.approx([1.0, 0.1, blended, 0.001 / 8])
