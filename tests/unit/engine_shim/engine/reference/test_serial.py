from __future__ import annotations

import pytest
import torch

from engine_shim.engine.reference.serial import GRAIN, serial_exp_, serial_sigmoid, serial_silu


def numbers(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0)) * 5


def test_an_exponential_has_the_same_bits_wherever_it_lies():
    x = numbers(3 * GRAIN + 64)
    whole = serial_exp_(x.clone())
    assert torch.allclose(whole.double(), x.double().exp(), rtol=1e-6)
    for begin, length in ((0, 16), (16, 48), (GRAIN - 16, 64), (GRAIN + 32, GRAIN)):
        assert torch.equal(serial_exp_(x[begin : begin + length].clone()), whole[begin : begin + length])


@pytest.mark.parametrize("width", [8, 13, 16, 48, 64, 133])
@pytest.mark.parametrize("half", [False, True], ids=["whole rows", "half of wider rows"])
def test_a_row_has_the_same_bits_in_any_company(width: int, half: bool):
    x = numbers(500, 2 * width)[:, :width] if half else numbers(500, width)
    sigmoid, silu = serial_sigmoid(x), serial_silu(x)
    assert torch.allclose(sigmoid.double(), torch.sigmoid(x.double()), rtol=1e-5, atol=1e-7)
    assert torch.allclose(silu.double(), x.double() * torch.sigmoid(x.double()), rtol=1e-5, atol=1e-7)
    assert silu.is_contiguous()
    for begin, end in ((0, 0), (0, 1), (3, 20), (200, 500), (499, 500)):
        assert torch.equal(serial_silu(x[begin:end]), silu[begin:end])
        assert torch.equal(serial_sigmoid(x[begin:end]), sigmoid[begin:end])
