"""Kernels: the computations that the numerics choose between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

from engine_shim.engine.reference.attention import AttentionPlanner
from engine_shim.engine.reference.attention_fast import FastPlan
from engine_shim.engine.reference.attention_invariant import InvariantPlan
from engine_shim.engine.reference.heads import HeadPlanner, PlainHeads
from engine_shim.engine.reference.invariant_linear import InvariantLinears
from engine_shim.engine.reference.linear import Linear, make_linear
from engine_shim.engine.reference.mlp import Gated, gated_by
from engine_shim.engine.reference.serial import serial_silu
from engine_shim.engine.reference.settings import Numerics
from router.contract.errors import MissingDependency


def plain_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm by torch."""
    return F.rms_norm(x, weight.shape, weight, eps)


@dataclass(frozen=True, slots=True)
class Kernels:
    """One way to compute everything whose bits can depend on shapes."""

    make_linear: Callable[[torch.Tensor], Linear]
    """From weights [out, in]."""
    gated: Gated
    plan_attention: AttentionPlanner
    plan_heads: HeadPlanner = PlainHeads
    norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] = plain_norm
    """RMSNorm of the rows of [rows, width], by weights [width] and epsilon."""


def kernels_of(numerics: Numerics, device: str = "cpu") -> Kernels:
    """The Kernels that keep the promise of `numerics`, for a `cpu` or a `cuda` device.

    Raises:
        MissingDependency: fast numerics on a GPU without Triton.
    """
    if numerics is Numerics.INVARIANT:
        return Kernels(InvariantLinears(), gated_by(serial_silu), InvariantPlan)
    if device == "cpu":
        return Kernels(make_linear, gated_by(F.silu), FastPlan)
    try:
        # Only where there is a GPU.
        from engine_shim.engine.reference.paged import FusedHeads, PagedAttention, fused_gate, fused_norm  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "An engine on a GPU needs Triton: run `pip install triton`, or use --numerics invariant."
        ) from error
    return Kernels(make_linear, fused_gate, PagedAttention(), FusedHeads, fused_norm)
