from __future__ import annotations

import torch
from torch.nn.functional import silu

from engine_shim.engine.reference.linear import PlainLinear
from engine_shim.engine.reference.mlp import SwiGLU, gated_by


def test_gate_and_up_are_one_matrix_and_the_residual_is_added():
    generator = torch.Generator().manual_seed(0)
    gate, up, down = torch.randn(3, 6, 6, generator=generator)
    x, residual = torch.randn(2, 4, 6, generator=generator)
    mlp = SwiGLU(PlainLinear(torch.cat((gate, up))), PlainLinear(down), gated_by(silu))
    expected = residual + (silu(x @ gate.T) * (x @ up.T)) @ down.T
    assert torch.allclose(mlp.add_to(residual, x), expected, atol=1e-5)
