"""Rotary position embedding: pairs (i, i + head_dim / 2) of a head are turned by position * frequency_i.

Source: Su et al. 2021, "RoFormer", equation 34; frequency_i = theta^(-2i / head_dim). The `llama3` stretching follows
the Llama 3.1 model card: long wavelengths are divided by `factor`, short ones kept, those between are blended.
"""

from __future__ import annotations

import math

import torch

from engine_shim.engine.reference.config import ModelConfig, RopeScaling


class RopeTable:
    """Cosines and signed sines of every position, ready for `x * cos + half_turn(x) * sin`."""

    def __init__(self, frequencies: torch.Tensor, num_positions: int, dtype: torch.dtype) -> None:
        """Tables are [num_positions, 1, head_dim]; the sines of the first half carry the minus sign."""
        angles = torch.arange(num_positions, dtype=torch.float32).outer(frequencies.float())
        self._half = angles.shape[1]
        self.cos = angles.cos().repeat(1, 2).unsqueeze(1).to(dtype)
        sin = angles.sin()
        self.sin = torch.cat((-sin, sin), dim=1).unsqueeze(1).to(dtype)

    def to(self, device: torch.device) -> RopeTable:
        """The same table, on `device`."""
        self.cos, self.sin = self.cos.to(device), self.sin.to(device)
        return self

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of both tables for int64 positions [rows]: two tensors [rows, 1, head_dim]."""
        return self.cos[positions], self.sin[positions]

    def turn(self, heads: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """[rows, heads, head_dim] turned by what `at` gave for these rows; a new tensor."""
        cos, sin = turns
        # Two roundings per product and sum, everywhere: a fused addcmul may round once in some elements only.
        return (heads * cos).add_(heads.roll(self._half, -1).mul_(sin))


def frequencies_of(config: ModelConfig, divisors: torch.Tensor | None = None) -> torch.Tensor:
    """Radians per position, float32 [head_dim / 2].

    Args:
        config: theta, head_dim and scaling.
        divisors: float32 [head_dim / 2] that a checkpoint stores instead of naming its scaling.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / torch.tensor(config.rope_theta, dtype=torch.float32) ** exponents
    if divisors is not None:
        frequencies = frequencies / divisors
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    return frequencies / scaling.factor if scaling.kind == "linear" else _llama3(frequencies, scaling)


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)
