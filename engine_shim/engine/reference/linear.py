"""Linear: y = x W^T, in the quickest way that keeps the promise of the numerics."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

PACK_ROWS = 16
"""The batch size that oneDNN lays packed weights out for; measured best over all batch sizes from 1 to 512."""


class Linear(Protocol):
    """A matrix multiplication by fixed weights."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T: [rows, in] to [rows, out]."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + x W^T: [rows, out]."""


class PlainLinear:
    """W as it is, [out, in]."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return F.linear(x, self.weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return residual + F.linear(x, self.weight)


class PackedLinear:
    """W in oneDNN's blocked layout (float32 on CPU).

    A plain float32 GEMM re-packs W on every call, which costs more than the multiplication itself while there are
    few rows; packing once makes a batch of 2 to 16 rows about as quick as one row.

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


def size_class(num_rows: int) -> int:
    """The smallest class that holds `num_rows`: 1, 2, 4, 8, 16, 24, 32, then four classes per doubling."""
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length()
    step = max(1 << (num_rows - 1).bit_length() >> 3, 8)
    return -(-num_rows // step) * step


def make_linear(weight: torch.Tensor) -> Linear:
    """The Linear for weights of this dtype on this device; `weight` itself need not be kept."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if has_onednn and weight.device.type == "cpu" and weight.dtype == torch.float32:
        return PackedLinear(weight)
    return PlainLinear(weight)
