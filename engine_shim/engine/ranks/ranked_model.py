"""RankedModel: the forward pass of a batch, its sequences divided among rank processes.

Attention is data-parallel: each sequence's rows are computed by one rank, whichever it is, since all ranks of the host
share the KV cache. Only rows for experts travel between ranks.
"""

from __future__ import annotations

import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.ranks.messages import Compute
from engine_shim.engine.ranks.processes import RankProcesses
from engine_shim.engine.ranks.sharing import in_order, parts_of, share_chunks
from engine_shim.engine.reference.batch import Batch
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.linear import Linear

CPU = torch.device("cpu")


class RankedModel:
    """See ForwardPass."""

    def __init__(self, ranks: RankProcesses, head: Linear, dtype: torch.dtype, device: torch.device = CPU) -> None:
        """`head` multiplies hidden states of `dtype` on `device`."""
        self._ranks = ranks
        self._head = head
        self._dtype, self._device = dtype, device
        self.loads = (ExpertRankLoad(),) * ranks.num_ranks
        """Of each rank, as of the last step."""

    def forward(self, batch: Batch, _cache: KVCache) -> torch.Tensor:
        """See ForwardPass. Raises RankGone."""
        owners = share_chunks(batch.chunks, self._ranks.num_ranks)
        parts = parts_of(batch.chunks, owners, self._ranks.num_ranks)
        if self._device.type != "cpu":
            # Blocks that this process has cleared must be clear before a rank writes to them.
            torch.cuda.current_stream(self._device).synchronize()
        computed = self._ranks.compute([Compute(part) for part in parts])
        self.loads = tuple(one.load for one in computed)
        return in_order([torch.from_numpy(one.hidden) for one in computed], parts, owners).to(self._device, self._dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ForwardPass."""
        return self._head(hidden).float()
