"""The forward pass of a Llama-like decoder: rows of a Batch in, hidden states of the wanted rows out.

x = embedding[token]
for each layer:   x += out(attention(turn(q), turn(k), v))   where q, k, v = qkv(norm(x))
                  x += mlp(norm(x))
logits = head(norm(x))
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

from engine_shim.engine.reference.attention import AttentionPlan
from engine_shim.engine.reference.batch import Batch
from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.kernels import Kernels
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.moe import MixtureOfExperts
from engine_shim.engine.reference.rope import RopeTable
from engine_shim.engine.reference.walk import Walk, finish
from engine_shim.engine.reference.weights import LayerWeights, Weights


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

    def walk(self, batch: Batch, cache: KVCache) -> Walk:
        """`forward`, pausing while rows are under way to other ranks' experts and back."""
        x = self._weights.embedding[batch.token_ids]
        # A rank without rows takes part in its peers' mixtures of experts, and in nothing else.
        plan = self._kernels.plan_attention(batch, cache, self._config.group_size) if len(x) else None
        turns = self._rope.at(batch.positions)
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            mixed = x if plan is None else self._mix(index, x, batch, plan, cache, turns)
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

    def _mix(
        self,
        index: int,
        x: torch.Tensor,
        batch: Batch,
        plan: AttentionPlan,
        cache: KVCache,
        turns: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Attention's mixture for every row before the output projection: [rows, heads * head_dim]."""
        config, layer = self._config, self._weights.layers[index]
        num_qk = config.num_heads + config.num_kv_heads
        heads = layer.qkv(self._norm(x, layer.attention_norm)).view(len(x), -1, config.head_dim)
        turned = self._rope.turn(self._normed_heads(layer, heads[:, :num_qk]), turns)
        kv = torch.stack((turned[:, config.num_heads :], heads[:, num_qk:]), dim=1)
        cache.write(index, batch.places, kv)
        return plan.attend(index, turned[:, : config.num_heads])

    def _normed_heads(self, layer: LayerWeights, heads: torch.Tensor) -> torch.Tensor:
        if layer.qk_norms is None:
            return heads
        queries, keys = torch.split(heads, [self._config.num_heads, self._config.num_kv_heads], dim=1)
        q_norm, k_norm = layer.qk_norms
        return torch.cat((self._norm(queries, q_norm), self._norm(keys, k_norm)), dim=1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._config.rms_eps)
