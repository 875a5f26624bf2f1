from __future__ import annotations

import torch

from engine_shim.engine.reference.attention_fast import FastPlan
from engine_shim.engine.reference.attention_invariant import InvariantPlan
from engine_shim.engine.reference.invariant_linear import is_row_invariant
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.settings import Numerics


def test_the_numerics_choose_the_kernels():
    fast, invariant = kernels_of(Numerics.FAST), kernels_of(Numerics.INVARIANT)
    assert (fast.plan_attention, invariant.plan_attention) == (FastPlan, InvariantPlan)
    weight = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))
    assert is_row_invariant(invariant.make_linear(weight), weight)
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(fast.gated(x), invariant.gated(x))
