"""A batch in two micro-batches: while rows of one travel between ranks, the other computes.

    first    attention, gate ─ rows ─────────────── experts ─ answers ─────────────────── sums, next layer
    second                         attention, gate ─ rows ─────────── experts ─ answers ───────────────

So attention, the gate, the shared expert and the experts of one half hide the way of the other's rows. Every rank takes
both halves of every step, with no rows where it has none: flights then follow each other alike on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_shim.engine.ranks.sharing import in_order, parts_of, share_chunks
from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.walk import in_turns

NUM_HALVES = 2
"""As many flights are under way at once."""


def forward_in_halves(model: Model, chunks: Sequence[Chunk], cache: KVCache) -> torch.Tensor:
    """See `Model.forward`, of the batch of these chunks; sequences are not cut."""
    owners = share_chunks(chunks, NUM_HALVES)
    parts = parts_of(chunks, owners, NUM_HALVES)
    batches = [make_batch(part, cache.layout.block_tokens, cache.tensor.device) for part in parts]
    return in_order(in_turns([model.walk(batch, cache) for batch in batches]), parts, owners)
