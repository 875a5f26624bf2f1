"""Products of pairs of matrices whose rows have the same bits whatever else is multiplied with them."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

ROW_MULTIPLE = 16
"""Matrices have a multiple of so many rows: there, every row of a product has the same bits at any height."""
PORTION = 64
"""Pairs of one product on a GPU in float32."""


def multiply(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
    """`out` holds first @ second, pair by pair: [pairs, height, width] of a height that is a multiple of ROW_MULTIPLE.

    In float32 on a GPU, cuBLAS takes other kernels for other heights and numbers of pairs; there, all products have one
    shape: PORTION pairs, ROW_MULTIPLE rows.
    """
    if not (first.is_cuda and first.dtype is torch.float32):
        torch.bmm(first, second, out=out)
        return
    flat = first.reshape(-1, ROW_MULTIPLE, first.shape[2])
    others = second.repeat_interleave(first.shape[1] // ROW_MULTIPLE, dim=0)
    parts = [
        torch.bmm(_filled(rows), _filled(other))[: len(rows)]
        for rows, other in zip(flat.split(PORTION), others.split(PORTION), strict=True)  # type: ignore[no-untyped-call]
    ]
    out.copy_(torch.cat(parts).view(out.shape))


def _filled(part: torch.Tensor) -> torch.Tensor:
    """[PORTION, ...], contiguous."""
    return F.pad(part, (0, 0, 0, 0, 0, PORTION - len(part))).contiguous()
