from __future__ import annotations

import torch

from engine_shim.engine.reference import packed_linear
from engine_shim.engine.reference.packed_linear import PackedLinear, PixelLinear, can_pack, size_class


def test_size_classes_are_few_and_close():
    classes = {size_class(rows) for rows in range(1, 513)}
    assert {1, 2, 4, 8, 16, 24, 32, 40, 64, 80, 128, 160, 320, 512} <= classes
    assert len(classes) == 23
    assert all(rows <= size_class(rows) <= max(rows * 5 / 4, rows + 7) for rows in range(1, 513))
    assert all(size_class(each) == each for each in classes)


def test_only_float32_on_cpu_is_packed():
    assert can_pack(torch.zeros(2, 2))
    assert not can_pack(torch.zeros(2, 2, dtype=torch.float16))
    assert not can_pack(torch.zeros(2, 2, device="meta"))


def test_the_convolution_only_sees_numbers_of_rows_that_want_its_layout(monkeypatch):
    weight = torch.randn(192, 96, generator=torch.Generator().manual_seed(0))
    linear = PixelLinear(weight)
    seen: set[int] = set()
    multiply = PixelLinear._multiply

    def watched(self: PixelLinear, x: torch.Tensor) -> torch.Tensor:
        seen.add(len(x))
        return multiply(self, x)

    monkeypatch.setattr(PixelLinear, "_multiply", watched)
    for rows in (*range(1, 40), 500, 513, 900):
        linear(torch.zeros(rows, 96))
    wanted = packed_linear._layout(packed_linear._pack_pixels(weight, packed_linear.PACK_PIXELS))
    assert seen <= set(linear._classes)
    for rows in linear._classes:
        assert packed_linear._layout(packed_linear._pack_pixels(weight, rows)) == wanted


def test_kernels_are_compiled_for_size_classes_only(monkeypatch):
    seen: set[int] = set()
    multiply = PackedLinear._multiply
    monkeypatch.setattr(PackedLinear, "_multiply", lambda self, x: seen.add(len(x)) or multiply(self, x))
    linear = PackedLinear(torch.randn(40, 24, generator=torch.Generator().manual_seed(0)))
    for rows in range(1, 100):
        linear(torch.zeros(rows, 24))
    assert seen == {size_class(rows) for rows in range(1, 100)}
