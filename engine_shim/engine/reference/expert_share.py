"""How a model's experts are shared by ranks, as the engine's settings say it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_shim.engine.reference.config import ModelConfig
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from router.contract.errors import BadSettings

UNBOUNDED_TOKENS = 1 << 24
"""A group of one rank takes no memory for what travels."""


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """The engine's part of an ExpertShape."""

    num_ranks: int = 1
    numerics: ExpertNumerics = ExpertNumerics.EXACT
    max_tokens: int = UNBOUNDED_TOKENS
    """Rows of one rank in one step."""
    fp8: bool = False
    """Rows travel in fp8; else in the weights' own dtype, which changes no bit of them."""


def expert_shape(config: ModelConfig, dtype: torch.dtype, share: ExpertShare) -> ExpertShape:
    """The group's constants for this model.

    Raises:
        BadSettings: the model has no experts, or they cannot be shared like this.
    """
    if config.moe is None:
        raise BadSettings(f"A {config.family} model has no experts to share; use --ep 1.")
    own = RowFormat.BF16 if dtype is torch.bfloat16 else RowFormat.F32
    return ExpertShape(
        num_ranks=share.num_ranks,
        num_experts=config.moe.num_experts,
        top_k=config.moe.top_k,
        hidden_size=config.hidden_size,
        max_tokens=share.max_tokens,
        numerics=share.numerics,
        dispatch_format=RowFormat.FP8 if share.fp8 else own,
        combine_format=own,
    )
