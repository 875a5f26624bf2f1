from __future__ import annotations

import pytest
import torch

from engine_shim.engine.reference.linear import PackedLinear, PlainLinear, make_linear


@pytest.mark.parametrize("make", [PackedLinear, PlainLinear])
@pytest.mark.parametrize("num_rows", [1, 3, 40])
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


def test_packing_is_for_float32_alone():
    assert isinstance(make_linear(torch.zeros(4, 4)), PackedLinear)
    assert isinstance(make_linear(torch.zeros(4, 4, dtype=torch.bfloat16)), PlainLinear)
