"""The forward pass of a Llama-like decoder: rows of a Batch in, hidden states of the wanted rows out.

x = embedding[token]
for each layer:   x += out(attention(turn(q), turn(k), v))   where q, k, v = qkv(norm(x))
                  x += mlp(norm(x))
logits = head(norm(x))
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine_shim.engine.reference.attention import AttentionPlan
from engine_shim.engine.reference.batch import Batch
from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.heads import HeadPlan
from engine_shim.engine.reference.kernels import Kernels
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.moe import MixtureOfExperts
from engine_shim.engine.reference.rope import RopeTable
from engine_shim.engine.reference.walk import Walk, finish
from engine_shim.engine.reference.weights import Weights


class ForwardPass(Protocol):
    """A model, wherever it is computed."""

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """The cache holds the KV of all rows; returns the normed hidden states of the wanted rows, [wanted, hidden]."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, vocab] of what `forward` gave."""


class Model:
    """A decoder-only transformer over a paged KV cache."""

    def __init__(self, config: ModelConfig, weights: Weights, num_positions: int, kernels: Kernels) -> None:
        """Positions must stay below `num_positions`; `kernels` are those that the weights were loaded for."""
        self._config = config
        self._weights = weights
        self._kernels = kernels
        embedding = weights.embedding
        self._rope = RopeTable(weights.rope_frequencies, num_positions, embedding.dtype).to(embedding.device)

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """See ForwardPass."""
        return finish(self.walk(batch, cache))

    def walk(self, batch: Batch, cache: KVCache, plan: AttentionPlan | None = None) -> Walk:
        """`forward`, pausing while rows are under way to other ranks' experts and back; without a plan it makes one."""
        x = self._weights.embedding[batch.token_ids]
        # A rank without rows takes part in its peers' mixtures of experts, and in nothing else.
        if plan is None and len(x):
            plan = self._kernels.plan_attention(batch, cache, self._config.group_size)
        entry = self._kernels.plan_heads(self._config, self._rope, batch, cache)
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            mixed = x if plan is None else self._mix(index, x, entry, plan)
            if batch.on_layer is not None:
                batch.on_layer(index + 1)
            if index == last and batch.wanted is not None:
                # Rows that nobody wants have left their KV behind and are of no more use.
                x, mixed = x[batch.wanted], mixed[batch.wanted]
            if len(x):
                x = layer.out.add_to(x, mixed)
            if isinstance(layer.mlp, MixtureOfExperts):
                x = yield from layer.mlp.walk(x, self._norm(x, layer.mlp_norm))
            elif len(x):
                x = layer.mlp.add_to(x, self._norm(x, layer.mlp_norm))
        return self._norm(x, self._weights.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ForwardPass."""
        return self._weights.head(hidden).float()

    def _mix(self, index: int, x: torch.Tensor, entry: HeadPlan, plan: AttentionPlan) -> torch.Tensor:
        """Attention's mixture for every row before the output projection: [rows, heads * head_dim]."""
        layer = self._weights.layers[index]
        heads = layer.qkv(self._norm(x, layer.attention_norm)).view(len(x), -1, self._config.head_dim)
        return plan.attend(index, entry.enter(index, heads, layer.qk_norms))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._kernels.norm(x, weight, self._config.rms_eps)
