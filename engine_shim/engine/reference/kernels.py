"""Kernels: the computations that the numerics choose between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

from engine_shim.engine.reference.attention import AttentionPlanner
from engine_shim.engine.reference.attention_fast import FastPlan
from engine_shim.engine.reference.attention_invariant import InvariantPlan
from engine_shim.engine.reference.invariant_linear import InvariantLinears
from engine_shim.engine.reference.linear import Linear, make_linear
from engine_shim.engine.reference.serial import serial_silu
from engine_shim.engine.reference.settings import Numerics


@dataclass(frozen=True, slots=True)
class Kernels:
    """One way to compute everything whose bits can depend on shapes."""

    make_linear: Callable[[torch.Tensor], Linear]
    """From weights [out, in]."""
    silu: Callable[[torch.Tensor], torch.Tensor]
    """A new tensor, of [rows, width]."""
    plan_attention: AttentionPlanner


def kernels_of(numerics: Numerics) -> Kernels:
    """The Kernels that keep the promise of `numerics`."""
    if numerics is Numerics.INVARIANT:
        return Kernels(InvariantLinears(), serial_silu, InvariantPlan)
    return Kernels(make_linear, F.silu, FastPlan)
