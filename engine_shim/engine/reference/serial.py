"""Elementwise functions whose bits do not depend on where an element lies.

torch's CPU kernels compute elements a STRIDE at a time and the last few one by one, with another last bit. Which
elements are the last few depends on where the work is cut between threads. Work below GRAIN elements is not cut, so a
portion of at most GRAIN elements, in whole strides, is computed in one way only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

GRAIN = 32768
"""torch cuts no elementwise work of at most so many elements (at::internal::GRAIN_SIZE)."""
STRIDE = 32
"""Two of the widest vectors of float32, those of AVX-512: the body of at::native::vectorized_loop."""


def serial_exp_(x: torch.Tensor) -> torch.Tensor:
    """exp in place; `x` is contiguous and has a multiple of 16 elements."""
    if x.device.type == "cpu":
        for portion in x.view(-1).split(GRAIN):  # type: ignore[no-untyped-call]
            portion.exp_()
        return x
    return x.exp_()


def serial_silu(x: torch.Tensor) -> torch.Tensor:
    """silu of `x` [rows, width]."""
    return _by_rows(F.silu, x)


def serial_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """The sigmoid of `x` [rows, width]."""
    return _by_rows(torch.sigmoid, x)


def _by_rows(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Rows are cut apart, never a row; one that ends inside a stride is filled up with zeros while it is computed."""
    if x.device.type != "cpu":
        return function(x)
    width = x.shape[1]
    whole = F.pad(x, (0, -width % STRIDE)) if width % STRIDE else x
    rows = max(GRAIN // whole.shape[1], 1)
    found = [function(portion) for portion in torch.split(whole, rows)]
    return (found[0] if len(found) == 1 else torch.cat(found))[:, :width].contiguous()
