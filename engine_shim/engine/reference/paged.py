"""Attention, heads and gates by the kernels of `cuda_kernels.py`, fast numerics.

Rows that decode are one launch for all of them, over paged keys and values where they lie. A longer chunk gathers its
own sequence's keys and values side by side and takes torch's flash attention, which wants them so and is quicker than
any short kernel of ours; in float32, which that has not, torch's other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
import triton

from engine_shim.engine.reference.attention import AttentionPart, AttentionPlan, PlanOfParts
from engine_shim.engine.reference.attention_fast import FastPart
from engine_shim.engine.reference.batch import Batch, Chunk
from engine_shim.engine.reference.block_mirror import BlockMirror
from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.cuda_kernels import attend_paged, enter_heads, gate, merge_splits, norm_rows
from engine_shim.engine.reference.heads import Norms
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.rope import RopeTable

TILE_TOKENS = 64
LEAST_MEMBERS = 16
"""Rows of the smallest product that tensor cores compute."""
PROGRAMS = 512
"""Splits are added until there are about so many programs: four for each multiprocessor."""
MOST_SPLITS = 64
HEAD_ROWS = 8
GATE_COLUMNS = 2048
NORM_WARPS = 8
HALF_TYPES = (torch.bfloat16, torch.float16)


class PagedAttention:
    """An AttentionPlanner for one cache; it keeps the mirror of the tables."""

    def __init__(self) -> None:
        self._mirrored: tuple[KVCache, BlockMirror] | None = None

    def __call__(self, batch: Batch, cache: KVCache, _group_size: int) -> AttentionPlan:
        """See AttentionPlanner."""
        mirror = self.mirror(cache)
        # At once for the whole batch: who is not in it may lose its slot.
        slots = mirror.slots_of([chunk for chunk in batch.chunks if chunk.num_rows == 1])
        parts: list[AttentionPart] = []
        row = num_placed = 0
        for is_one, chunks in groupby(batch.chunks, key=lambda chunk: chunk.num_rows == 1):
            group = list(chunks)
            if is_one:
                end = num_placed + len(group)
                positions = batch.positions[row : row + len(group)]
                parts.append(PagedRows(mirror.tables, slots[num_placed:end], positions))
                num_placed = end
            else:
                kind = FlashChunk if cache.tensor.dtype in HALF_TYPES else FastPart
                parts += [kind([chunk], cache) for chunk in group]
            row += sum(chunk.num_rows for chunk in group)
        return PlanOfParts(parts, cache)

    def mirror(self, cache: KVCache) -> BlockMirror:
        """The tables of this cache's sequences."""
        if self._mirrored is None or self._mirrored[0] is not cache:
            self._mirrored = cache, BlockMirror(cache.layout.num_blocks, cache.tensor.device)
        return self._mirrored[1]


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Rows that decode: one of each sequence."""

    tables: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows in the batch."""
        return len(self.slots)

    def attend(self, cache: KVCache, layer: int, queries: torch.Tensor) -> Iterator[torch.Tensor]:
        """The rows' mixtures, one piece [rows, heads * head_dim]."""
        rows, num_heads, head_dim = queries.shape
        kept, num_kv_heads = cache.layers[layer], cache.layout.num_kv_heads
        group, dims = num_heads // num_kv_heads, max(triton.next_power_of_2(head_dim), LEAST_MEMBERS)
        splits = num_splits(rows * num_kv_heads)
        sums = queries.new_empty((rows, num_heads, splits, dims + 1), dtype=torch.float32)
        tops = queries.new_empty((rows, num_heads, splits), dtype=torch.float32)
        members = max(triton.next_power_of_2(group), LEAST_MEMBERS)
        attend_paged[rows, num_kv_heads, splits](
            queries, kept, self.tables, self.tables.stride(0), self.slots, self.positions, sums, tops, head_dim**-0.5,
            *kept.stride()[:4], cache.layout.block_tokens, group, members, head_dim, dims, TILE_TOKENS,
        )  # fmt: skip
        mixed = torch.empty_like(queries)
        merge_splits[(rows * num_heads,)](sums, tops, mixed, splits, head_dim, dims)
        yield mixed.view(rows, -1)


def num_splits(programs: int) -> int:
    """Into how many parts each row's tokens are cut, when there are so many programs without: a power of two."""
    return min(MOST_SPLITS, 1 << max(PROGRAMS // max(programs, 1) - 1, 0).bit_length())


class FlashChunk:
    """Rows of one sequence's prompt, each with the tokens up to itself."""

    def __init__(self, chunks: list[Chunk], cache: KVCache) -> None:
        (chunk,) = chunks
        self.num_rows = chunk.num_rows
        self._num_tokens = chunk.end_position
        table = list(chunk.table[: cache.layout.blocks_for(chunk.end_position)])
        self._blocks = torch.tensor(table, dtype=torch.int64).to(cache.tensor.device, non_blocking=True)

    def attend(self, cache: KVCache, layer: int, queries: torch.Tensor) -> Iterator[torch.Tensor]:
        """The rows' mixtures, one piece [rows, heads * head_dim]."""
        keys, values = (self._dense(cache, kept) for kept in (cache.keys[layer], cache.values[layer]))
        # With fewer queries than keys, this operation's causal mask ends at the last key: each row sees itself last.
        mixed = torch.ops.aten._scaled_dot_product_flash_attention(
            queries.unsqueeze(0).transpose(1, 2), keys, values, 0.0, True
        )[0]
        yield mixed.transpose(1, 2).reshape(self.num_rows, -1)

    def _dense(self, cache: KVCache, kept: torch.Tensor) -> torch.Tensor:
        """[1, kv_heads, tokens, head_dim]"""
        layout = cache.layout
        rows = kept.index_select(0, self._blocks).view(1, -1, layout.num_kv_heads, layout.head_dim)
        return rows[:, : self._num_tokens].transpose(1, 2)


class FusedHeads:
    """See HeadPlan."""

    def __init__(self, config: ModelConfig, rope: RopeTable, batch: Batch, cache: KVCache) -> None:
        self._config = config
        self._rope = rope
        self._positions = batch.positions
        self._blocks = batch.places[0]
        self._cache = cache

    def enter(self, layer: int, heads: torch.Tensor, norms: Norms | None) -> torch.Tensor:
        """See HeadPlan."""
        config, rows = self._config, len(heads)
        kept = self._cache.layers[layer]
        queries = heads.new_empty((rows, config.num_heads, config.head_dim))
        q_norm, k_norm = norms if norms is not None else (heads, heads)
        enter_heads[triton.cdiv(rows, HEAD_ROWS), config.num_heads + 2 * config.num_kv_heads](
            heads, self._positions, self._blocks, queries, kept, q_norm, k_norm, self._rope.cos, self._rope.sin,
            rows, config.rms_eps, *kept.stride()[:4], self._cache.layout.block_tokens, config.num_heads,
            config.num_kv_heads, config.head_dim, triton.next_power_of_2(config.head_dim // 2), HEAD_ROWS,
            norms is not None,
        )  # fmt: skip
        return queries


def fused_gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [rows, 2 * width] to [rows, width]."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width))
    gate[rows, triton.cdiv(width, GATE_COLUMNS)](gate_up, out, width, GATE_COLUMNS)
    return out


def fused_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of each row of x [rows, width]."""
    out = torch.empty_like(x)
    norm_rows[(len(x),)](x, weight, out, x.shape[1], eps, triton.next_power_of_2(x.shape[1]), num_warps=NORM_WARPS)
    return out
