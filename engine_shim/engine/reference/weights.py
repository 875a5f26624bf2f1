"""Weights: a model's tensors on its device, fused and ready to multiply.

Fusing: the query, key and value projections read the same input, so their rows are stacked into one matrix, and so are
gate and up. One multiplication of [rows, hidden] then serves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_shim.engine.reference.checkpoint import Checkpoint
from engine_shim.engine.reference.expert_share import ExpertShare, expert_shape
from engine_shim.engine.reference.gate import Gate
from engine_shim.engine.reference.kernels import Kernels
from engine_shim.engine.reference.linear import Linear
from engine_shim.engine.reference.mlp import Mlp, SwiGLU
from engine_shim.engine.reference.moe import MixtureOfExperts
from engine_shim.engine.reference.moe_config import Scoring
from engine_shim.engine.reference.rope import frequencies_of
from engine_shim.experts.port import Experts
from engine_shim.experts.solo import SoloExperts


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer."""

    attention_norm: torch.Tensor
    qkv: Linear
    """hidden to [query heads | key heads | value heads] * head_dim."""
    qk_norms: tuple[torch.Tensor, torch.Tensor] | None
    """Per-head RMSNorm weights [head_dim] of query and key."""
    out: Linear
    mlp_norm: torch.Tensor
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model."""

    embedding: torch.Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Linear
    rope_frequencies: torch.Tensor
    """float32 [head_dim / 2], radians per position."""
    digest: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What of a model one process holds."""

    experts: Experts | None = None
    """Through which all sparse layers speak to the experts' ranks; None: all experts are here."""
    layers: bool = True
    """False where others compute the layers."""


WHOLE = Holding()


class _Reader:
    """Reads tensors of one Checkpoint to their place."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, kernels: Kernels) -> None:
        self.checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self.kernels = kernels

    def tensor(self, name: str, *sizes: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        out = torch.empty(sizes, dtype=dtype or self._dtype, device=self._device)
        self.checkpoint.read(name, out)
        return out

    def linear(self, names: Sequence[str], rows: Sequence[int], columns: int) -> Linear:
        stacked = torch.empty((sum(rows), columns), dtype=self._dtype, device=self._device)
        for name, part in zip(names, torch.split(stacked, list(rows)), strict=True):
            self.checkpoint.read(f"{name}.weight", part)
        return self.kernels.make_linear(stacked)


@torch.inference_mode()
def load_weights(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, kernels: Kernels, holding: Holding = WHOLE
) -> Weights:
    """The weights of `checkpoint` that `holding` names on `device`, in `dtype`, every matrix made for `kernels`.

    Raises:
        ModelUnusable: a tensor is missing or has another shape than the configuration says.
    """
    config, reader = checkpoint.config, _Reader(checkpoint, dtype, device, kernels)
    embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    experts = holding.experts
    if experts is None and config.moe is not None:
        experts = SoloExperts(expert_shape(config, dtype, ExpertShare()))
    layers = tuple(_layer(reader, index, experts) for index in range(config.num_layers) if holding.layers)
    norm = reader.tensor("model.norm.weight", config.hidden_size)
    if config.tied_embeddings:
        head = kernels.make_linear(embedding)
    else:
        head = reader.linear(["lm_head"], [config.vocab_size], config.hidden_size)
    divisors = None
    if checkpoint.has("rope_freqs"):
        divisors = torch.empty(config.head_dim // 2, dtype=torch.float32)
        checkpoint.read("rope_freqs", divisors)
    return Weights(embedding, layers, norm, head, frequencies_of(config, divisors), checkpoint.digest())


def _layer(reader: _Reader, index: int, experts: Experts | None) -> LayerWeights:
    config, at = reader.checkpoint.config, f"model.layers.{index}"
    hidden, head_dim = config.hidden_size, config.head_dim
    q_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    attention = f"{at}.self_attn"
    sparse = config.moe is not None and index not in config.moe.dense_layers
    qk_norms = None
    if config.qk_norm:
        qk_norms = (
            reader.tensor(f"{attention}.q_norm.weight", head_dim),
            reader.tensor(f"{attention}.k_norm.weight", head_dim),
        )
    return LayerWeights(
        attention_norm=reader.tensor(f"{at}.input_layernorm.weight", hidden),
        qkv=reader.linear([f"{attention}.{x}_proj" for x in "qkv"], [q_rows, kv_rows, kv_rows], hidden),
        qk_norms=qk_norms,
        out=reader.linear([f"{attention}.o_proj"], [hidden], q_rows),
        mlp_norm=reader.tensor(f"{at}.post_attention_layernorm.weight", hidden),
        mlp=_mixture(reader, f"{at}.mlp", experts)
        if sparse and experts is not None
        else _swiglu(reader, f"{at}.mlp", config.intermediate_size),
    )


def _swiglu(reader: _Reader, at: str, size: int) -> SwiGLU:
    hidden = reader.checkpoint.config.hidden_size
    return SwiGLU(
        gate_up=reader.linear([f"{at}.gate_proj", f"{at}.up_proj"], [size] * 2, hidden),
        down=reader.linear([f"{at}.down_proj"], [hidden], size),
        gated=reader.kernels.gated,
    )


def _mixture(reader: _Reader, at: str, experts: Experts) -> MixtureOfExperts:
    config, moe = reader.checkpoint.config, reader.checkpoint.config.moe
    assert moe is not None
    bias = None
    if moe.scoring is Scoring.SIGMOID:
        bias = reader.tensor(f"{at}.gate.e_score_correction_bias", moe.num_experts, dtype=torch.float32)
    gate = reader.tensor(f"{at}.gate.weight", moe.num_experts, config.hidden_size, dtype=torch.float32)
    first = experts.rank * experts.shape.local_experts
    numbers = range(first, first + experts.shape.local_experts)
    return MixtureOfExperts(
        gate=Gate(moe, reader.kernels.make_linear(gate), bias),
        experts=experts,
        local=[_swiglu(reader, f"{at}.experts.{number}", moe.intermediate_size) for number in numbers],
        shared=_swiglu(reader, f"{at}.shared_experts", moe.shared_size) if moe.shared_size else None,
    )
