"""RankedModel: the forward pass of a batch, its sequences divided among rank processes.

Attention is data-parallel: each sequence's rows are computed by one rank, whichever it is, since all ranks of the host
share the KV cache. Only rows for experts travel between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.ranks.messages import Compute
from engine_shim.engine.ranks.processes import RankProcesses
from engine_shim.engine.reference.batch import Batch, Chunk
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.linear import Linear


class RankedModel:
    """See ForwardPass."""

    def __init__(self, ranks: RankProcesses, head: Linear, dtype: torch.dtype) -> None:
        """`head` multiplies hidden states of `dtype`."""
        self._ranks = ranks
        self._head = head
        self._dtype = dtype
        self.loads = (ExpertRankLoad(),) * ranks.num_ranks
        """Of each rank, as of the last step."""

    def forward(self, batch: Batch, _cache: KVCache) -> torch.Tensor:
        """See ForwardPass. Raises RankGone."""
        owners = share_chunks(batch.chunks, self._ranks.num_ranks)
        parts = [
            Compute(tuple(chunk for chunk, owner in zip(batch.chunks, owners, strict=True) if owner == rank))
            for rank in range(self._ranks.num_ranks)
        ]
        computed = self._ranks.compute(parts)
        self.loads = tuple(one.load for one in computed)
        pieces = [
            iter(torch.split(torch.from_numpy(one.hidden), [chunk.num_wanted for chunk in part.chunks]))
            for one, part in zip(computed, parts, strict=True)
        ]
        return torch.cat([next(pieces[owner]) for owner in owners]).to(self._dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ForwardPass."""
        return self._head(hidden).float()


def share_chunks(chunks: Sequence[Chunk], num_ranks: int) -> list[int]:
    """The rank of each chunk: in order, the one with the fewest rows so far."""
    rows = [0] * num_ranks
    owners = []
    for chunk in chunks:
        owner = rows.index(min(rows))
        rows[owner] += chunk.num_rows
        owners.append(owner)
    return owners
