"""Linear: y = x W^T, in the quickest way that keeps the promise of the numerics."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

from engine_shim.engine.reference.packed_linear import PackedLinear, PixelLinear, can_pack

MOST_TURNED_ROWS = 64
"""Up to so many rows, MKL is quicker on the transposed product (measured)."""
WIDE, HEAD = 2, 8
"""Outputs per input from which a matrix is taken for the wide one of an MLP, or for an output head."""


class Linear(Protocol):
    """A matrix multiplication by fixed weights."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T: [rows, in] to [rows, out]."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + x W^T: [rows, out]."""


class PlainLinear:
    """W as it is, [out, in].

    On CPU, MKL is quicker with few rows when it computes the transposed product W x^T, whose result is turned back.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self._turned = range(2, MOST_TURNED_ROWS + 1) if weight.device.type == "cpu" else range(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        if len(x) in self._turned:
            return torch.mm(self._weight, x.t()).t().contiguous()
        return F.linear(x, self._weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        if self._turned and len(x) > MOST_TURNED_ROWS:
            return torch.addmm(residual, x, self._weight.t())
        return residual + self(x)


def make_linear(weight: torch.Tensor) -> Linear:
    """The quickest Linear for these weights, [out, in]; `weight` itself need not be kept.

    Measured on SmolLM2's matrices with 1 to 512 rows: a convolution is the quickest for the wide matrix of an MLP with
    any number of rows, an inner product for the output head, which is multiplied with few rows only; for the others
    MKL is as quick with one row, and as quick or quicker with many.
    """
    ratio = weight.shape[0] / weight.shape[1]
    if ratio < WIDE or not can_pack(weight):
        return PlainLinear(weight)
    return PackedLinear(weight) if ratio >= HEAD else PixelLinear(weight)
