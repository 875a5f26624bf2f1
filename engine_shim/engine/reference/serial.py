"""Elementwise functions whose bits do not depend on where an element lies.

torch's CPU kernels compute exponentials eight at a time and the last few one by one, with another last bit. Which
elements are the last few depends on where the work is cut between threads. Work below GRAIN elements is not cut, so a
portion of at most GRAIN elements, in whole vectors, is computed in one way only.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

GRAIN = 32768
"""torch cuts no elementwise work of at most so many elements (at::internal::GRAIN_SIZE)."""


def serial_exp_(x: torch.Tensor) -> torch.Tensor:
    """exp in place; `x` is contiguous and has a multiple of 16 elements."""
    if x.device.type == "cpu":
        for portion in x.view(-1).split(GRAIN):  # type: ignore[no-untyped-call]
            portion.exp_()
        return x
    return x.exp_()


def serial_silu(x: torch.Tensor) -> torch.Tensor:
    """silu of each row of `x` [rows, width]; rows are cut apart, never a row."""
    if x.device.type == "cpu" and x.numel() > GRAIN:
        rows = max(GRAIN // x.shape[1], 1)
        return torch.cat([F.silu(portion) for portion in torch.split(x, rows)])
    return F.silu(x)
