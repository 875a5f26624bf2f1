"""Heads: what happens between a layer's first projection and its attention.

queries, keys   RMSNorm of each head where the model has it, then rotary embedding by position
keys, values    into the cache, where the rows' places are
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

from engine_shim.engine.reference.batch import Batch
from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.rope import RopeTable

Norms = tuple[torch.Tensor, torch.Tensor]
"""Weights [head_dim] of the queries' norm and of the keys'."""


class HeadPlan(Protocol):
    """What all layers of one forward pass share."""

    def enter(self, layer: int, heads: torch.Tensor, norms: Norms | None) -> torch.Tensor:
        """The cache holds the rows' keys and values of this layer.

        Args:
            layer: whose cache to write.
            heads: [rows, query heads + 2 * kv_heads, head_dim], contiguous: queries, keys, values as projected.
            norms: None where heads have no norms.
        Returns:
            The queries, [rows, query heads, head_dim].
        """


HeadPlanner = Callable[[ModelConfig, RopeTable, Batch, KVCache], HeadPlan]


class PlainHeads:
    """See HeadPlan; torch's own operations, one after the other."""

    def __init__(self, config: ModelConfig, rope: RopeTable, batch: Batch, cache: KVCache) -> None:
        self._config = config
        self._rope = rope
        self._places = batch.places
        self._cache = cache
        self._turns = rope.at(batch.positions)

    def enter(self, layer: int, heads: torch.Tensor, norms: Norms | None) -> torch.Tensor:
        """See HeadPlan."""
        num_heads, num_qk = self._config.num_heads, self._config.num_heads + self._config.num_kv_heads
        turned = self._rope.turn(self._normed(heads[:, :num_qk], norms), self._turns)
        kv = torch.stack((turned[:, num_heads:], heads[:, num_qk:]), dim=1)
        self._cache.write(layer, self._places, kv)
        return turned[:, :num_heads]

    def _normed(self, heads: torch.Tensor, norms: Norms | None) -> torch.Tensor:
        if norms is None:
            return heads
        parts = torch.split(heads, [self._config.num_heads, self._config.num_kv_heads], dim=1)
        eps, size = self._config.rms_eps, heads.shape[-1:]
        return torch.cat([F.rms_norm(part, size, norm, eps) for part, norm in zip(parts, norms, strict=True)], dim=1)
