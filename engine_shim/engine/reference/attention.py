"""Attention: every row mixes the values of its own sequence's tokens up to itself.

    out = softmax(q K^T / sqrt(head_dim)) V        Source: Vaswani et al. 2017, equation 1

A planner looks at a Batch once; the plan it gives is then used by every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from engine_shim.engine.reference.batch import Batch
from engine_shim.engine.reference.kv_cache import KVCache


class AttentionPlan(Protocol):
    """What all layers of one forward pass share."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention of every row; the rows' own KV is in the cache already.

        Args:
            layer: whose cache to read.
            queries: [rows, heads, head_dim].
        Returns:
            [rows, heads * head_dim].
        """


class AttentionPart(Protocol):
    """Rows that lie beside each other in a batch and are computed together."""

    @property
    def num_rows(self) -> int:
        """Rows in the batch."""

    def attend(self, cache: KVCache, layer: int, queries: torch.Tensor) -> Iterator[torch.Tensor]:
        """The rows' mixtures in their order, in pieces [rows, heads * head_dim]."""


class PlanOfParts:
    """An AttentionPlan of parts, which together are the batch, in its order."""

    def __init__(self, parts: Sequence[AttentionPart], cache: KVCache) -> None:
        self._parts = parts
        self._cache = cache
        self._rows = [part.num_rows for part in parts]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """See AttentionPlan."""
        parts = zip(self._parts, torch.split(queries, self._rows), strict=True)
        pieces = [piece for part, rows in parts for piece in part.attend(self._cache, layer, rows)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


AttentionPlanner = Callable[[Batch, KVCache, int], AttentionPlan]
"""From a batch, the cache, and the number of query heads that share one KV head."""
