from __future__ import annotations

import pytest
import torch

from engine_shim.engine.reference.linear import PlainLinear, make_linear
from engine_shim.engine.reference.packed_linear import PackedLinear, PixelLinear


@pytest.mark.parametrize("make", [PlainLinear, PackedLinear, PixelLinear])
@pytest.mark.parametrize("num_rows", [1, 3, 40, 200, 700])
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


def test_the_shape_decides_how_a_float32_matrix_is_multiplied():
    assert isinstance(make_linear(torch.zeros(32, 4)), PackedLinear)
    assert isinstance(make_linear(torch.zeros(31, 4)), PixelLinear)
    assert isinstance(make_linear(torch.zeros(7, 4)), PlainLinear)
    assert isinstance(make_linear(torch.zeros(32, 4, dtype=torch.bfloat16)), PlainLinear)
