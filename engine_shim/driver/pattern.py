"""A seeded pattern in blocks of a KV cache, and how much of one has arrived elsewhere.

The pattern is a function of (seed, slab, token), a slab being K or V of one layer. So both ends know what a token must
hold, whatever their block sizes and memory orders are:

    grid[slab, block, place, byte]    a view of the whole cache, by the strides of `engine_shim.core.transfer_plan`
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from router.contract.errors import BadRequest
from router.contract.kv import BlockTable, KVLayout, KVOrder, Region

FINITE_BELOW = 64
"""Such bytes are finite numbers in every dtype: whoever gets the blocks next reads them, if only to mask them."""

Bytes = npt.NDArray[np.uint8]


def write_pattern(region: Region, layout: KVLayout, blocks: BlockTable, num_tokens: int, seed: int) -> None:
    """The first `num_tokens` tokens of `blocks` hold the pattern. Raises BadRequest as `_grid` does."""
    grid, table = _grid(region, layout), np.array(blocks)
    held = grid[:, table].reshape(2 * layout.num_layers, -1, layout.slab_token_bytes)
    held[:, :num_tokens] = _pattern(layout, num_tokens, seed)
    grid[:, table] = held.reshape(2 * layout.num_layers, len(blocks), layout.block_tokens, layout.slab_token_bytes)


def count_wrong_bytes(region: Region, layout: KVLayout, blocks: BlockTable, num_tokens: int, seed: int) -> int:
    """How many bytes of the first `num_tokens` tokens of `blocks` differ from the pattern. Raises BadRequest."""
    held = _grid(region, layout)[:, np.array(blocks)].reshape(2 * layout.num_layers, -1, layout.slab_token_bytes)
    return int((held[:, :num_tokens] != _pattern(layout, num_tokens, seed)).sum())


def _pattern(layout: KVLayout, num_tokens: int, seed: int) -> Bytes:
    """Bytes `[slabs, num_tokens, slab_token_bytes]`, all below FINITE_BELOW."""
    shape = (2 * layout.num_layers, num_tokens, layout.slab_token_bytes)
    return np.random.default_rng(seed).integers(0, FINITE_BELOW, shape, dtype=np.uint8)


def _grid(region: Region, layout: KVLayout) -> Bytes:
    """The cache as bytes `[slabs, num_blocks, block_tokens, slab_token_bytes]`. Raises BadRequest off host memory."""
    if region.device != "cpu":
        raise BadRequest(f"The pattern is written by the CPU, and this cache is in {region.device} memory.")
    memory = (ctypes.c_uint8 * region.num_bytes).from_address(region.base)
    flat: Bytes = np.ctypeslib.as_array(memory)
    slab_block_bytes = layout.block_tokens * layout.slab_token_bytes
    if layout.order is KVOrder.BLOCK_FIRST:
        slab_stride, block_stride = slab_block_bytes, layout.block_bytes
    else:
        slab_stride, block_stride = slab_block_bytes * layout.num_blocks, slab_block_bytes
    shape = (2 * layout.num_layers, layout.num_blocks, layout.block_tokens, layout.slab_token_bytes)
    return np.lib.stride_tricks.as_strided(flat, shape, (slab_stride, block_stride, layout.slab_token_bytes, 1))
