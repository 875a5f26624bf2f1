"""Attention over the paged cache, fast numerics.

Each chunk's keys and values are gathered from its blocks once per layer, and torch's fused kernel does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

from engine_shim.engine.reference.batch import Batch, Chunk
from engine_shim.engine.reference.kv_cache import KVCache


class AttentionPlan(Protocol):
    """What all layers of one forward pass share."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention of every row to the tokens of its own sequence up to itself; the rows' own KV is in the cache.

        Args:
            layer: whose cache to read.
            queries: [rows, heads, head_dim].
        Returns:
            [rows, heads * head_dim].
        """


AttentionPlanner = Callable[[Batch, KVCache], AttentionPlan]


class FastPlan:
    """One fused kernel call per chunk."""

    def __init__(self, batch: Batch, cache: KVCache) -> None:
        self._cache = cache
        self._parts = [_ChunkPart(chunk, cache) for chunk in batch.chunks]
        self._rows = [chunk.num_rows for chunk in batch.chunks]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """See AttentionPlan."""
        kv = self._cache.layers[layer]
        parts = zip(self._parts, torch.split(queries, self._rows), strict=True)
        return torch.cat([part.attend(kv, rows) for part, rows in parts])


class _ChunkPart:
    def __init__(self, chunk: Chunk, cache: KVCache) -> None:
        device = cache.tensor.device
        self._num_tokens = chunk.end_position
        num_blocks = cache.layout.blocks_for(chunk.end_position)
        self._blocks = torch.tensor(chunk.table[:num_blocks], dtype=torch.int64).to(device)
        self._mask: torch.Tensor | None = None
        if chunk.num_rows > 1:
            rows = torch.arange(chunk.first_position, chunk.end_position, device=device)
            hidden = rows.unsqueeze(1) < torch.arange(chunk.end_position, device=device)
            self._mask = torch.zeros(hidden.shape, dtype=cache.tensor.dtype, device=device)
            self._mask.masked_fill_(hidden, -torch.inf)

    def attend(self, kv: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        seen = kv[self._blocks].flatten(0, 1)[: self._num_tokens].unsqueeze(0).transpose(1, 3)
        out = F.scaled_dot_product_attention(
            queries.unsqueeze(0).transpose(1, 2), seen[:, :, 0], seen[:, :, 1], attn_mask=self._mask, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(len(queries), -1)
