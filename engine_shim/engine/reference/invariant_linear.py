"""Linear with results that do not depend on how many rows are multiplied together.

Nothing in a GEMM library promises that, but many kernels have it: as long as a row's sum over the inputs is taken in
the same order, only the speed depends on the number of rows. So a kernel is probed at load, and where it fails, the
rows are cut into tiles of one fixed size, padded, and multiplied tile by tile: then all calls have one shape.
"""

from __future__ import annotations

import torch

from engine_shim.engine.reference.linear import Linear, PlainLinear
from engine_shim.engine.reference.packed_linear import PackedLinear, can_pack

PROBED_ROWS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 100, 128, 200, 257, 384, 511)
LARGE_WEIGHT = 1 << 23
"""Matrices of more elements (the output head) are probed, and to be called, with at most LARGE_ROWS rows."""
LARGE_ROWS = 64
TILE_ROWS = 16


class TiledLinear:
    """A Linear that is only ever called with TILE_ROWS rows."""

    def __init__(self, inner: Linear) -> None:
        self._inner = inner

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        num_rows = len(x)
        padded = torch.nn.functional.pad(x, (0, 0, 0, -num_rows % TILE_ROWS))
        return torch.cat([self._inner(tile) for tile in torch.split(padded, TILE_ROWS)])[:num_rows]

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return residual + self(x)


class InvariantLinears:
    """Makes Linears whose rows are independent, and remembers what was probed.

    cuBLAS has more float32 kernels, for more ranges of rows, than PROBED_ROWS can meet: there, all is tiled.
    """

    def __init__(self) -> None:
        self._verdicts: dict[tuple[torch.Size, torch.dtype, torch.device], bool] = {}

    def __call__(self, weight: torch.Tensor) -> Linear:
        """A Linear of `weight`, [out, in]."""
        linear = PackedLinear(weight) if can_pack(weight) else PlainLinear(weight)
        key = (weight.shape, weight.dtype, weight.device)
        if key not in self._verdicts:
            unsure = weight.is_cuda and weight.dtype is torch.float32
            self._verdicts[key] = not unsure and is_row_invariant(linear, weight)
        return linear if self._verdicts[key] else TiledLinear(linear)


def is_row_invariant(linear: Linear, weight: torch.Tensor) -> bool:
    """True when no number of rows in PROBED_ROWS changes a bit of any row's result."""
    most = LARGE_ROWS if weight.numel() > LARGE_WEIGHT else max(PROBED_ROWS) + 1
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(most, weight.shape[1], generator=generator).to(weight)
    residual = torch.randn(most, weight.shape[0], generator=generator).to(weight)
    whole, added = linear(x), linear.add_to(residual, x)
    for count in (rows for rows in PROBED_ROWS if rows <= most):
        last = slice(most - count, most)
        if not torch.equal(linear(x[last]), whole[last]):
            return False
        if not torch.equal(linear.add_to(residual[last], x[last]), added[last]):
            return False
    return True
