"""Attention whose results do not depend on the batch, the chunking or the block size, bit by bit.

Floating-point sums depend on their order, and fast kernels choose the order by shape. Here all shapes are fixed:

    - queries are cut into tiles of one fixed number of rows, keys into tiles of KEY_TILE absolute positions;
    - each (query tile, key tile) pair is multiplied on its own, and normalised by its own maximum and sum;
    - a query tile's pairs are joined one after the other in the order of positions.

A key tile that lies wholly after a row weighs exactly 0 and adds exactly nothing, so it does not matter whether it is
visited. With m, z the maximum and the sum of exponentials of a pair and o its normalised mixture, the join is

    out = sum_t w_t o_t / sum_t w_t        w_t = exp(m_t - max m) z_t        z_t = 1 / max(softmax(scores_t))

Pairs lie tile-major: first key tile 0 of all query tiles, then key tile 1 of those that reach it, and so on; query
tiles are sorted by reach, so those that reach key tile t are the first `reaching[t]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine_shim.engine.reference.batch import Batch, Chunk
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.pair_product import ROW_MULTIPLE, multiply
from engine_shim.engine.reference.serial import serial_exp_
from engine_shim.engine.reference.settings import KEY_TILE
from router.contract.kv import BlockTable

CHUNK_ROWS = 64
"""Rows of a query tile of a prompt."""
MAX_PAIRS = 256
"""Pairs that are computed at once, to bound the memory."""
HIDDEN = -1e30
"""The score of a key that a row may not see; finite, so that a wholly hidden tile gives no NaN."""


@dataclass(frozen=True, slots=True)
class _QueryTile:
    first_row: int
    num_rows: int
    first_position: int
    table: BlockTable | list[int]

    @property
    def reach(self) -> int:
        """Key tiles up to the last row's position."""
        return (self.first_position + self.num_rows - 1) // KEY_TILE + 1


class InvariantPlan:
    """See AttentionPlan."""

    def __init__(self, batch: Batch, cache: KVCache, group_size: int) -> None:
        """`group_size` query heads share one KV head; the cache's block size divides KEY_TILE."""
        self._cache = cache
        small = max(ROW_MULTIPLE // group_size, 1)
        tiles = list(_query_tiles(batch.chunks, small))
        self._groups: list[_Group] = []
        for rows, members in (
            (small, [tile for tile in tiles if tile.num_rows <= small]),
            (CHUNK_ROWS, [tile for tile in tiles if tile.num_rows > small]),
        ):
            height = -(-rows * group_size // ROW_MULTIPLE) * ROW_MULTIPLE
            self._groups += [_Group(part, cache, height, group_size) for part in _portions(members)]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """See AttentionPlan."""
        layout = self._cache.layout
        out = torch.empty_like(queries.contiguous())
        grouped = queries.view(len(queries), layout.num_kv_heads, -1, layout.head_dim) * layout.head_dim**-0.5
        mixed = out.view(len(out), layout.num_kv_heads, -1, layout.head_dim)
        for group in self._groups:
            mixed[group.rows] = group.attend(self._cache, layer, grouped[group.rows])
        return out.flatten(1)


class _Group:
    """Query tiles of one height, with all their pairs."""

    def __init__(self, tiles: list[_QueryTile], cache: KVCache, height: int, group_size: int) -> None:
        device, layout = cache.tensor.device, cache.layout
        tiles.sort(key=lambda tile: tile.reach, reverse=True)
        self._height, self._num_tiles = height, len(tiles)
        self.reaching = [sum(tile.reach > t for tile in tiles) for t in range(tiles[0].reach)]
        pairs = [(tile, t) for t, count in enumerate(self.reaching) for tile in range(count)]
        rows: list[int] = []
        slots: list[list[int]] = []
        positions = torch.zeros(len(tiles), height, dtype=torch.int64)
        for index, tile in enumerate(tiles):
            rows += range(tile.first_row, tile.first_row + tile.num_rows)
            for row in range(tile.num_rows):
                begin = row * group_size
                slots.append(list(range(index * height + begin, index * height + begin + group_size)))
                positions[index, begin : begin + group_size] = tile.first_position + row
        per_tile = KEY_TILE // layout.block_tokens
        blocks = [_block(tiles[tile].table, t * per_tile + part) for tile, t in pairs for part in range(per_tile)]
        self.rows = torch.tensor(rows).to(device)
        self._slots = torch.tensor(slots).to(device)
        self._blocks = torch.tensor(blocks).to(device)
        self._tile_of_pair = torch.tensor([tile for tile, _ in pairs]).to(device)
        keys = torch.tensor([t for _, t in pairs]).unsqueeze(1) * KEY_TILE + torch.arange(KEY_TILE)
        self._hidden = (positions[[tile for tile, _ in pairs]].unsqueeze(2) < keys.unsqueeze(1)).to(device)

    def attend(self, cache: KVCache, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """[rows, kv_heads, group_size, head_dim] scaled queries to mixtures of the same shape."""
        keys, values = self._dense(cache, cache.keys[layer]), self._dense(cache, cache.values[layer])
        num_rows, num_kv_heads, group_size, head_dim = queries.shape
        slots = self._slots.view(-1)
        tiles = queries.new_zeros(num_kv_heads, self._num_tiles * self._height, head_dim)
        tiles[:, slots] = queries.transpose(0, 1).reshape(num_kv_heads, -1, head_dim)
        tiles = tiles.view(num_kv_heads, self._num_tiles, self._height, head_dim)
        shape = (num_kv_heads, len(self._tile_of_pair), self._height)
        scores, mixtures = queries.new_empty(*shape, KEY_TILE), queries.new_empty(*shape, head_dim)
        for head in range(num_kv_heads):
            multiply(tiles[head][self._tile_of_pair], keys[:, :, head].transpose(1, 2), scores[head])
        maxima = scores.masked_fill_(self._hidden, HIDDEN).amax(-1)
        shares = scores.softmax(-1)
        for head in range(num_kv_heads):
            multiply(shares[head], values[:, :, head], mixtures[head])
        out = self._join(maxima, shares.amax(-1), mixtures)
        picked = out.view(num_kv_heads, -1, head_dim)[:, slots]
        return picked.view(num_kv_heads, num_rows, group_size, head_dim).transpose(0, 1)

    def _join(self, maxima: torch.Tensor, largest: torch.Tensor, mixtures: torch.Tensor) -> torch.Tensor:
        """The mixtures of all key tiles of each query tile as one: [kv_heads, tiles, height, head_dim].

        Args:
            maxima: each pair's largest score, [kv_heads, pairs, height].
            largest: each pair's largest share, which is 1 / z.
            mixtures: [kv_heads, pairs, height, head_dim], overwritten.
        """
        top = maxima[:, : self._num_tiles].clone()
        for at, count in self._later_tiles():
            top[:, :count] = torch.maximum(top[:, :count], maxima[:, at : at + count])
        weights = serial_exp_(maxima - top[:, self._tile_of_pair]).div_(largest)
        mixtures.mul_(weights.unsqueeze(-1))
        total, mixed = weights[:, : self._num_tiles].clone(), mixtures[:, : self._num_tiles].clone()
        for at, count in self._later_tiles():
            total[:, :count].add_(weights[:, at : at + count])
            mixed[:, :count].add_(mixtures[:, at : at + count])
        return mixed.div_(total.unsqueeze(-1))

    def _later_tiles(self) -> Iterator[tuple[int, int]]:
        """(first pair, pairs) of key tiles 1, 2, ..."""
        at = self._num_tiles
        for count in self.reaching[1:]:
            yield at, count
            at += count

    def _dense(self, cache: KVCache, kept: torch.Tensor) -> torch.Tensor:
        """[pairs, KEY_TILE, kv_heads, head_dim]"""
        layout = cache.layout
        return kept.index_select(0, self._blocks).view(-1, KEY_TILE, layout.num_kv_heads, layout.head_dim)


def _block(table: BlockTable | list[int], index: int) -> int:
    """Keys beyond a sequence's last block are hidden, so any block of its own may stand for them."""
    return table[min(index, len(table) - 1)]


def _query_tiles(chunks: tuple[Chunk, ...], small: int) -> Iterator[_QueryTile]:
    first_row = 0
    for chunk in chunks:
        step = small if chunk.num_rows <= small else CHUNK_ROWS
        for offset in range(0, chunk.num_rows, step):
            count = min(step, chunk.num_rows - offset)
            yield _QueryTile(first_row + offset, count, chunk.first_position + offset, chunk.table)
        first_row += chunk.num_rows


def _portions(tiles: list[_QueryTile]) -> Iterator[list[_QueryTile]]:
    """The tiles in portions of at most MAX_PAIRS pairs each, or of a single tile."""
    portion: list[_QueryTile] = []
    num_pairs = 0
    for tile in tiles:
        if portion and num_pairs + tile.reach > MAX_PAIRS:
            yield portion
            portion, num_pairs = [], 0
        portion.append(tile)
        num_pairs += tile.reach
    if portion:
        yield portion
