from __future__ import annotations

import pytest
import torch

from engine_shim.bench.contestants import Timing, Workload
from engine_shim.bench.engine_rates import decode_bytes, num_matrix_weights, prefill_flops, rates
from engine_shim.engine.reference.checkpoint_names import tensor_shapes
from engine_shim.engine.reference.config import config_from_hf
from engine_shim.engine.reference.shapes import SHAPES

CONFIG = config_from_hf(SHAPES["seeded-qwen3-8b"])


def test_matrices_are_all_projections_of_the_layers():
    shapes = tensor_shapes(CONFIG)
    assert num_matrix_weights(CONFIG) == sum(
        torch.Size(size).numel() for name, size in shapes.items() if "layers" in name and len(size) == 2
    )


def test_a_long_prompt_costs_two_flops_a_weight_and_token_and_its_attention():
    """8 billion parameters, 16384 tokens: attention is 4 * 36 layers * 4096 * 16384^2 / 2."""
    work = Workload([[0] * 16384], 2)
    attention = 4 * 36 * 4096 * 16384**2 / 2
    assert prefill_flops(CONFIG, work) == pytest.approx(2 * 6.946e9 * 16384 + attention, rel=2e-3)


def test_a_step_reads_matrices_once_and_every_sequence_s_cache():
    one, two = (decode_bytes(CONFIG, Workload([[0] * 1000] * count, 0), torch.bfloat16) for count in (1, 2))
    assert two - one == 1000 * 144 * 1024
    assert one - (two - one) == pytest.approx(2 * (6.946e9 + 0.622e9), rel=1e-3)


def test_rates_are_of_the_median_step():
    work = Workload([[0] * 1000], 0)
    found = rates(CONFIG, work, torch.bfloat16, Timing(2.0, 9.0, [], (0.5, 0.004, 0.004)))
    assert found.itl_ms == pytest.approx(4.0)
    assert found.decode_gb_per_s == pytest.approx(decode_bytes(CONFIG, work, torch.bfloat16) / 0.004 / 1e9)
    assert found.prefill_tflops == pytest.approx(prefill_flops(CONFIG, work) / 2e12)
