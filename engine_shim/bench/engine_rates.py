"""What a measured speed means: the share of a GPU's arithmetic, or of its memory's bandwidth, that an engine used.

    prefill   FLOPs = tokens * 2 * matrices + attention's 4 * layers * heads * head_dim * sum of what each row sees
    decode    bytes = matrices once a step + keys and values of all sequences, as far as they are then

`matrices` counts the numbers of all projections; the output head is multiplied with the last row of a prompt only.
Model FLOP utilisation is taken of the datasheet's dense rate, as papers do; the rate of a large product and of a large
copy measured in the same run stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from engine_shim.bench.contestants import Timing, Workload
from engine_shim.engine.reference.config import ModelConfig

DATASHEET_TFLOPS = 989.0
"""Dense bf16 of one H100 or H200 (NVIDIA's datasheet)."""
SQUARE = 8192
COPY_BYTES = 4 << 30
CEILING_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this GPU reaches when nothing else is asked of it."""

    tflops: float
    """Of a large bf16 product of random numbers."""
    gb_per_s: float
    """Of a large copy, bytes read and bytes written."""


@dataclass(frozen=True, slots=True)
class Rates:
    """One contestant's round."""

    prefill_tflops: float
    itl_ms: float
    """Median time of a step in which all sequences decode."""
    decode_gb_per_s: float


def num_matrix_weights(config: ModelConfig) -> int:
    """Numbers of all projections of all layers, without embedding and output head."""
    head_rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    attention = config.hidden_size * (head_rows + config.num_heads * config.head_dim)
    return config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def prefill_flops(config: ModelConfig, work: Workload) -> float:
    """Floating-point operations that the prompts' first tokens need."""
    flops = 0.0
    for prompt in work.prompts:
        seen = len(prompt) * (len(prompt) + 1) / 2
        flops += 2.0 * len(prompt) * num_matrix_weights(config) + 2.0 * config.vocab_size * config.hidden_size
        flops += 4.0 * config.num_layers * config.num_heads * config.head_dim * seen
    return flops


def decode_bytes(config: ModelConfig, work: Workload, dtype: torch.dtype) -> float:
    """Bytes that one step must read when half of the output is there."""
    matrices = num_matrix_weights(config) + config.vocab_size * config.hidden_size
    tokens = sum(map(len, work.prompts)) + len(work.prompts) * work.output_tokens / 2
    return dtype.itemsize * (matrices + 2.0 * config.num_layers * config.num_kv_heads * config.head_dim * tokens)


def rates(config: ModelConfig, work: Workload, dtype: torch.dtype, timing: Timing) -> Rates:
    """What this round says."""
    step_s = median(timing.step_s)
    return Rates(
        prefill_tflops=prefill_flops(config, work) / timing.prefill_s / 1e12,
        itl_ms=step_s * 1000,
        decode_gb_per_s=decode_bytes(config, work, dtype) / step_s / 1e9,
    )


def measure_ceilings(device: str) -> Ceilings:
    """A product of two bf16 matrices and a copy, both large, on this GPU."""
    left, right = torch.randn((2, SQUARE, SQUARE), device=device, dtype=torch.bfloat16)
    product_s = _median_s(lambda: left @ right)
    source = torch.empty(COPY_BYTES // 2, dtype=torch.int16, device=device).random_()
    target = torch.empty_like(source)
    copy_s = _median_s(lambda: target.copy_(source))
    return Ceilings(2 * SQUARE**3 / product_s / 1e12, 2 * COPY_BYTES / copy_s / 1e9)


# Any: torch leaves its events untyped.
def _median_s(work: Callable[[], Any]) -> float:
    times: list[float] = []
    make_event: Any = torch.cuda.Event
    for _ in range(CEILING_ROUNDS + 2):
        begin, end = make_event(enable_timing=True), make_event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return median(times[2:])
