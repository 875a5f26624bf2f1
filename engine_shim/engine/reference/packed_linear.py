"""Weights in a blocked layout of oneDNN's, float32 on CPU.

A plain GEMM of few rows spends most of its time on laying out W anew on every call. Packed once, a batch of 2 to 16
rows is about as quick as one row. Two of oneDNN's primitives can be had through torch, and each has its own layout:

    inner product   any number of rows; slower than MKL's plain GEMM with hundreds of rows, by about a tenth
    convolution     of one pixel, over rows as pixels: quicker than both from 4 rows on, but only with numbers of rows
                    for which oneDNN wants the layout that the weights happen to be in; else it re-packs, hundreds of
                    times slower

oneDNN compiles a kernel for every number of rows and keeps it, at about 0.6 MB each, so the rows are padded to one of a
few size classes.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

PACK_ROWS = 16
"""The batch size that the inner product's weights are laid out for; measured best over all from 1 to 512."""
PACK_PIXELS = 64
"""The number of rows that the convolution's weights are laid out for; its layout serves the most other numbers."""
MOST_PIXELS = 512


class PackedLinear:
    """W [out, in] as an inner product. See Linear."""

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


class PixelLinear:
    """W [out, in] as a convolution of one pixel. See Linear."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = _pack_pixels(weight, PACK_PIXELS)
        self._classes = _pixel_classes(weight.shape[0], weight.shape[1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        most = self._classes[-1]
        if len(x) > most:
            return torch.cat([self(rows) for rows in torch.split(x, most)])
        size = next(size for size in self._classes if size >= len(x))
        if size != len(x):
            return self._multiply(F.pad(x, (0, 0, 0, size - len(x))))[: len(x)]
        return self._multiply(x)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return residual + self(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Rows are the pixels of one image, and channels lie innermost: nothing is moved on the way in or out."""
        image = x.t()[None, :, :, None]
        y: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(
            image, self._packed, None, [0, 0], [1, 1], [1, 1], 1, "none", [], ""
        )
        return y[0, :, :, 0].t()


def can_pack(weight: torch.Tensor) -> bool:
    """True when oneDNN can hold this weight packed."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_onednn and weight.device.type == "cpu" and weight.dtype == torch.float32)


def size_class(num_rows: int) -> int:
    """The smallest class that holds `num_rows`: 1, 2, 4, 8, 16, 24, 32, then four classes per doubling."""
    if num_rows <= 8:
        return 1 << (num_rows - 1).bit_length()
    step = max(1 << (num_rows - 1).bit_length() >> 3, 8)
    return -(-num_rows // step) * step


@cache
def _pixel_classes(num_outputs: int, num_inputs: int) -> list[int]:
    """The size classes for which the convolution wants the layout of PACK_PIXELS, in ascending order."""
    weight = torch.zeros(num_outputs, num_inputs)
    wanted = _layout(_pack_pixels(weight, PACK_PIXELS))
    sizes = sorted({size_class(rows) for rows in range(1, MOST_PIXELS + 1)})
    return [size for size in sizes if _layout(_pack_pixels(weight, size)) == wanted]


def _pack_pixels(weight: torch.Tensor, num_pixels: int) -> torch.Tensor:
    num_inputs = weight.shape[1]
    packed: torch.Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight[:, :, None, None], [0, 0], [1, 1], [1, 1], 1, [1, num_inputs, num_pixels, 1]
    )
    return packed


def _layout(packed: torch.Tensor) -> list[int]:
    """What oneDNN says of a packed tensor's memory."""
    described: list[int] = torch.ops.mkldnn._get_mkldnn_serialized_md(packed).tolist()
    return described
