"""GraphedModel: batches in which everybody decodes are replayed as CUDA graphs.

A decode step is hundreds of launches that each take a few microseconds on the GPU, and longer than that to begin. A
graph is captured for a few numbers of rows; a batch is padded to the next of them with rows of position -1, which the
kernels neither store nor see. All other batches go to the model as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch

from engine_shim.engine.reference.attention import PlanOfParts
from engine_shim.engine.reference.batch import Batch
from engine_shim.engine.reference.kernels import Kernels
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.paged import PagedAttention, PagedRows
from engine_shim.engine.reference.walk import finish

WARM_UPS = 2
"""Passes before a capture: they compile kernels and let libraries take their memory."""


def graph_sizes(most_rows: int) -> list[int]:
    """Numbers of rows that graphs are captured for: powers of two up to 8, then every eighth up to `most_rows`."""
    return [*(size for size in (1, 2, 4) if size < most_rows), *range(8, most_rows, 8), most_rows]


@dataclass(frozen=True, slots=True)
class _Graph:
    replay: torch.cuda.CUDAGraph
    hidden: torch.Tensor


class GraphedModel:
    """See ForwardPass."""

    def __init__(self, model: Model, kernels: Kernels, cache: KVCache, most_rows: int) -> None:
        """Capture all graphs; seconds.

        Args:
            model: without experts, whose batches the host must look into.
            kernels: the model's own, with paged attention.
            cache: the only one that passes are computed over.
            most_rows: of a batch that is replayed.
        """
        self._model = model
        self._cache = cache
        assert isinstance(kernels.plan_attention, PagedAttention)
        self._mirror = kernels.plan_attention.mirror(cache)
        self._sizes = graph_sizes(most_rows)
        device = cache.tensor.device
        self._mirror.reserve(most_rows)
        self._token_ids = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._positions = torch.full((most_rows,), -1, dtype=torch.int64, device=device)
        self._blocks = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._slots = torch.zeros(most_rows, dtype=torch.int64, device=device)
        # The largest first: the others live in its memory.
        graphs: list[_Graph] = []
        for size in reversed(self._sizes):
            graphs.append(self._capture(size, graphs[0].replay.pool() if graphs else None))
        self._graphs = dict(zip(reversed(self._sizes), graphs, strict=True))

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """See ForwardPass."""
        rows = len(batch.token_ids)
        if not 0 < rows <= self._sizes[-1] or rows != len(batch.chunks) or batch.wanted is not None:
            return self._model.forward(batch, cache)
        # Captured launches read the tables where they were then; `reserve` has made room for all of these.
        slots = self._mirror.slots_of(batch.chunks)
        size = self._sizes[bisect_left(self._sizes, rows)]
        self._token_ids[:rows].copy_(batch.token_ids)
        self._positions[:rows].copy_(batch.positions)
        self._positions[rows:size].fill_(-1)
        self._blocks[:rows].copy_(batch.places[0])
        self._slots[:rows].copy_(slots)
        graph = self._graphs[size]
        graph.replay.replay()
        return graph.hidden[:rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ForwardPass."""
        return self._model.logits(hidden)

    def _capture(self, size: int, pool: object) -> _Graph:
        device = self._cache.tensor.device
        # torch leaves these constructors untyped.
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._compute(size)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):  # type: ignore[arg-type]
            hidden = self._compute(size)
        return _Graph(graph, hidden)

    def _compute(self, size: int) -> torch.Tensor:
        positions = self._positions[:size]
        places = (self._blocks[:size], positions % self._cache.layout.block_tokens)
        batch = Batch((), self._token_ids[:size], positions, places, None)
        rows = PagedRows(self._mirror.tables, self._slots[:size], positions)
        return finish(self._model.walk(batch, self._cache, PlanOfParts([rows], self._cache)))
