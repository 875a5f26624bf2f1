"""Attention with torch's fused kernel, fast numerics.

The kernel wants dense keys and values, so each layer copies the blocks that are needed, and nothing else, side by side.
Decoding sequences (one row each) of similar length share one call, padded to the longest; a longer chunk has a call of
its own:

    group of three      k: [3, tokens, kv_heads, head_dim]      mask hides what a shorter table's padding holds
    chunk of n rows     k: [1, tokens, kv_heads, head_dim]      mask hides what lies after each row

A chunk's rows are taken PIECE_ROWS at a time, each piece with the keys up to its own end: the kernel computes masked
scores like all others, and half of a whole prompt's scores are masked.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F  # noqa: N812  the name that every reader of torch code expects

from engine_shim.engine.reference.attention import PlanOfParts
from engine_shim.engine.reference.batch import Batch, Chunk
from engine_shim.engine.reference.kv_cache import KVCache

PIECE_ROWS = 64
GROUP_RATIO = 1.5
"""A group's longest table is at most so many times its shortest."""


class FastPlan(PlanOfParts):
    """The plan of a batch whose chunks are grouped by their tables' lengths."""

    def __init__(self, batch: Batch, cache: KVCache, _group_size: int) -> None:
        super().__init__([FastPart(chunks, cache) for chunks in _grouped(batch.chunks, cache)], cache)


class FastPart:
    """One call of the kernel: several chunks of one row, or one chunk of several rows."""

    def __init__(self, chunks: list[Chunk], cache: KVCache) -> None:
        self._num_chunks = len(chunks)
        self._rows_each = chunks[0].num_rows
        self.num_rows = self._num_chunks * self._rows_each
        num_blocks = max(cache.layout.blocks_for(chunk.end_position) for chunk in chunks)
        self._num_tokens = max(chunk.end_position for chunk in chunks)
        tables = [_padded(chunk, num_blocks) for chunk in chunks]
        self._blocks = torch.tensor(tables, dtype=torch.int64).to(cache.tensor.device, non_blocking=True).view(-1)
        self._mask = _mask(chunks, self._num_tokens, cache.tensor)
        begins = range(0, self._rows_each, PIECE_ROWS)
        self._pieces = [(begin, min(begin + PIECE_ROWS, self._rows_each)) for begin in begins]

    def attend(self, cache: KVCache, layer: int, queries: torch.Tensor) -> Iterator[torch.Tensor]:
        """The rows' mixtures in order, in pieces of [rows, heads * head_dim]."""
        keys, values = (self._dense(cache, kept) for kept in (cache.keys[layer], cache.values[layer]))
        rows = queries.view(self._num_chunks, self._rows_each, *queries.shape[1:]).transpose(1, 2)
        for begin, end in self._pieces:
            num_keys = self._num_tokens - self._rows_each + end
            mixed = F.scaled_dot_product_attention(
                rows[:, :, begin:end],
                keys[:, :, :num_keys],
                values[:, :, :num_keys],
                attn_mask=None if self._mask is None else self._mask[:, :, begin:end, :num_keys],
                enable_gqa=True,
            )
            yield mixed.transpose(1, 2).flatten(2).flatten(0, 1)

    def _dense(self, cache: KVCache, kept: torch.Tensor) -> torch.Tensor:
        """[num_chunks, kv_heads, tokens, head_dim]"""
        layout = cache.layout
        rows = kept.index_select(0, self._blocks).view(self._num_chunks, -1, layout.num_kv_heads, layout.head_dim)
        return rows[:, : self._num_tokens].transpose(1, 2)


def _grouped(chunks: tuple[Chunk, ...], cache: KVCache) -> Iterator[list[Chunk]]:
    """Neighbours of one row each, in order of length, as groups; longer chunks alone."""
    group: list[Chunk] = []
    for chunk in chunks:
        fits = bool(group) and chunk.num_rows == group[0].num_rows == 1
        if fits and chunk.end_position <= GROUP_RATIO * (group[0].end_position + cache.layout.block_tokens):
            group.append(chunk)
            continue
        if group:
            yield group
        group = [chunk]
    yield group


def _padded(chunk: Chunk, num_blocks: int) -> list[int]:
    table = list(chunk.table[:num_blocks])
    return table + table[-1:] * (num_blocks - len(table))


def _mask(chunks: list[Chunk], num_tokens: int, like: torch.Tensor) -> torch.Tensor | None:
    """Added to the scores: [chunks, 1, rows, tokens], 0 where a row may look and -inf elsewhere."""
    if all(chunk.num_rows == 1 and chunk.end_position == num_tokens for chunk in chunks):
        return None
    positions = [range(chunk.first_position, chunk.end_position) for chunk in chunks]
    rows = torch.tensor([list(span) for span in positions]).to(like.device, non_blocking=True)
    hidden = rows.unsqueeze(-1) < torch.arange(num_tokens, device=like.device)
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(hidden, -torch.inf).unsqueeze(1)
