"""Linear: y = x W^T, in the quickest way that keeps the promise of the numerics."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

PACK_ROWS = 16
"""The batch size that oneDNN lays packed weights out for; measured best over all batch sizes from 1 to 512."""
MOST_TURNED_ROWS = 64
"""Up to so many rows, MKL is quicker on the transposed product (measured)."""
HEAD_SHAPE = 8
"""Outputs per input from which a matrix is taken for an output head."""


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


class PackedLinear:
    """W in oneDNN's blocked layout (float32 on CPU).

    A GEMM of few rows spends most of its time on laying out W anew; packed once, a batch of 2 to 16 rows is about as
    quick as one row. With hundreds of rows MKL is quicker, by about a tenth.

    oneDNN compiles a kernel for every number of rows and keeps it, at about 0.6 MB each, so the rows are padded to one
    of a few size classes.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        missing = size_class(len(x)) - len(x)
        if missing:
            return self._multiply(F.pad(x, (0, 0, 0, missing)))[: len(x)]
        return self._multiply(x)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        if size_class(len(x)) != len(x):
            return self(x).add_(residual)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, None, "add")
        return y

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return y


def can_pack(weight: torch.Tensor) -> bool:
    """True when oneDNN can hold this weight packed."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_onednn and weight.device.type == "cpu" and weight.dtype == torch.float32)


def make_linear(weight: torch.Tensor) -> Linear:
    """The quickest Linear for these weights, [out, in]; `weight` itself need not be kept.

    Packing pays for the output head, which is multiplied with few rows only. A layer's matrices see prompts too, where
    most of the time goes.
    """
    is_head = weight.shape[0] >= HEAD_SHAPE * weight.shape[1]
    return PackedLinear(weight) if is_head and can_pack(weight) else PlainLinear(weight)


def size_class(num_rows: int) -> int:
    """The smallest class that holds `num_rows`: 1, 2, 4, 8, 16, 24, 32, then four classes per doubling."""
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length()
    step = max(1 << (num_rows - 1).bit_length() >> 3, 8)
    return -(-num_rows // step) * step
