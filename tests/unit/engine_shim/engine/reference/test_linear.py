from __future__ import annotations

import pytest
import torch

from engine_shim.engine.reference.linear import PackedLinear, PlainLinear, make_linear, size_class


@pytest.mark.parametrize("make", [PackedLinear, PlainLinear])
@pytest.mark.parametrize("num_rows", [1, 3, 40, 200])
def test_rows_are_multiplied_by_the_transposed_weight(make, num_rows):
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(24, 40, generator=generator), torch.randn(num_rows, 40, generator=generator)
    residual = torch.randn(num_rows, 24, generator=generator)
    exact = x.double() @ weight.double().T
    linear = make(weight)
    assert torch.allclose(linear(x).double(), exact, atol=1e-4)
    before = residual.clone()
    assert torch.allclose(linear.add_to(residual, x).double(), residual.double() + exact, atol=1e-4)
    assert torch.equal(residual, before)


def test_float32_heads_are_packed():
    assert isinstance(make_linear(torch.zeros(32, 4)), PackedLinear)
    assert isinstance(make_linear(torch.zeros(31, 4)), PlainLinear)
    assert isinstance(make_linear(torch.zeros(32, 4, dtype=torch.bfloat16)), PlainLinear)


def test_size_classes_are_few_and_close():
    classes = {size_class(rows) for rows in range(1, 513)}
    assert {1, 2, 4, 8, 16, 24, 32, 40, 64, 80, 128, 160, 320, 512} <= classes
    assert len(classes) == 23
    assert all(rows <= size_class(rows) <= max(rows * 5 / 4, rows + 7) for rows in range(1, 513))
    assert all(size_class(each) == each for each in classes)
