"""Attention: every row mixes the values of its own sequence's tokens up to itself.

    out = softmax(q K^T / sqrt(head_dim)) V        Source: Vaswani et al. 2017, equation 1

A planner looks at a Batch once; the plan it gives is then used by every layer.
"""

from __future__ import annotations

from collections.abc import Callable
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


AttentionPlanner = Callable[[Batch, KVCache, int], AttentionPlan]
"""From a batch, the cache, and the number of query heads that share one KV head."""
