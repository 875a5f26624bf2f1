"""Weights: a model's tensors on its device, fused and ready to multiply.

Fusing: the query, key and value projections read the same input, so their rows are stacked into one matrix, and so are
gate and up. One multiplication of [rows, hidden] then serves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_shim.engine.reference.checkpoint import Checkpoint
from engine_shim.engine.reference.kernels import Kernels
from engine_shim.engine.reference.linear import Linear
from engine_shim.engine.reference.mlp import Mlp, SwiGLU
from engine_shim.engine.reference.rope import frequencies_of


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


class _Reader:
    """Reads tensors of one Checkpoint to their place."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, kernels: Kernels) -> None:
        self.checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self.kernels = kernels

    def tensor(self, name: str, *sizes: int) -> torch.Tensor:
        out = torch.empty(sizes, dtype=self._dtype, device=self._device)
        self.checkpoint.read(name, out)
        return out

    def linear(self, names: Sequence[str], rows: Sequence[int], columns: int) -> Linear:
        stacked = torch.empty((sum(rows), columns), dtype=self._dtype, device=self._device)
        for name, part in zip(names, torch.split(stacked, list(rows)), strict=True):
            self.checkpoint.read(f"{name}.weight", part)
        return self.kernels.make_linear(stacked)


@torch.inference_mode()
def load_weights(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, kernels: Kernels) -> Weights:
    """All weights of `checkpoint` on `device`, converted to `dtype`, every matrix made for `kernels`.

    Raises:
        ModelUnusable: a tensor is missing or has another shape than the configuration says.
    """
    config, reader = checkpoint.config, _Reader(checkpoint, dtype, device, kernels)
    embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(_layer(reader, f"model.layers.{index}") for index in range(config.num_layers))
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


def _layer(reader: _Reader, at: str) -> LayerWeights:
    config = reader.checkpoint.config
    hidden, head_dim = config.hidden_size, config.head_dim
    q_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    attention, mlp = f"{at}.self_attn", f"{at}.mlp"
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
        mlp=SwiGLU(
            gate_up=reader.linear([f"{mlp}.gate_proj", f"{mlp}.up_proj"], [config.intermediate_size] * 2, hidden),
            down=reader.linear([f"{mlp}.down_proj"], [hidden], config.intermediate_size),
            silu=reader.kernels.silu,
        ),
    )
