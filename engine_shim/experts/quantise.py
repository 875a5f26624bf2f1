"""Rows in the format in which they travel, and back.

FP8: each SCALE_WIDTH numbers share a float32 scale. All in float32, each line one IEEE operation, so that every device
that does not fuse or flush gives the same bytes:

    amax  = max(|x|) of the block, at least LEAST_AMAX
    scale = amax / 448                            448 is e4m3's largest number
    q     = e4m3(x * (448 / amax))                to nearest, ties to even
    x'    = q * scale

Error of a number: |x' - x| <= 2^-4 |x| + 2^-10 scale (half a step of e4m3's normal and of its subnormal numbers), and a
few units of 2^-24 for the scale. Numbers must be finite: a block with an infinity or NaN has unspecified bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_shim.experts.shape import SCALE_WIDTH, RowFormat

LARGEST = 448.0
LEAST_AMAX = 2.0**-64
"""A block of zeros has a scale too, whose inverse is finite."""

DTYPES = {RowFormat.FP8: torch.float8_e4m3fn, RowFormat.BF16: torch.bfloat16, RowFormat.F32: torch.float32}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as they travel."""

    numbers: torch.Tensor
    """[rows, H] of the format's dtype."""
    scales: torch.Tensor
    """float32 [rows, H / SCALE_WIDTH]; [rows, 0] without FP8."""


def pack_rows(x: torch.Tensor, row_format: RowFormat) -> Rows:
    """`x` [rows, H], float32 or bfloat16, in `row_format`; what the format holds exactly is not changed."""
    if row_format is RowFormat.FP8:
        return _quantise(x)
    return Rows(x.to(DTYPES[row_format]), x.new_zeros((len(x), 0), dtype=torch.float32))


def unpack_rows(rows: Rows) -> torch.Tensor:
    """float32 [rows, H]: what the rows stand for."""
    numbers = rows.numbers.float()
    if not rows.scales.shape[1]:
        return numbers
    blocks = numbers.view(len(numbers), rows.scales.shape[1], SCALE_WIDTH)
    return (blocks * rows.scales.unsqueeze(-1)).view(numbers.shape)


def _quantise(x: torch.Tensor) -> Rows:
    blocks = x.float().view(len(x), x.shape[1] // SCALE_WIDTH, SCALE_WIDTH)
    amax = blocks.abs().amax(-1).clamp(min=LEAST_AMAX)
    inverse = torch.full_like(amax, LARGEST) / amax
    numbers = (blocks * inverse.unsqueeze(-1)).to(torch.float8_e4m3fn)
    # By a tensor: by a number, torch multiplies with the inverse on a GPU.
    return Rows(numbers.view(x.shape), amax / torch.full_like(amax, LARGEST))
