"""A seeded pattern in blocks of a KV cache, and how much of one has arrived elsewhere.

The pattern is a function of (seed, slab, token), a slab being K or V of one layer. So both ends know what a token must
hold, whatever their block sizes and memory orders are:

    grid[slab, block, place, head, byte]    a view of the whole cache, by the layout's strides
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from router.contract.errors import BadRequest
from router.contract.kv import BlockTable, KVLayout, Region

FINITE_BELOW = 64
"""Such bytes are finite numbers in every dtype: whoever gets the blocks next reads them, if only to mask them."""

Bytes = npt.NDArray[np.uint8]
# Any: a torch tensor where the cache is on a GPU; who has none needs no torch.
Grid: TypeAlias = Any


def write_pattern(region: Region, layout: KVLayout, blocks: BlockTable, num_tokens: int, seed: int) -> None:
    """The first `num_tokens` tokens of `blocks` hold the pattern. Raises BadRequest as `_grid` does."""
    grid = _grid(region, layout)
    held = _read(grid, blocks).reshape(_shape(layout, -1))
    held[:, :num_tokens] = _pattern(layout, num_tokens, seed)
    _write(grid, blocks, held.reshape(layout.num_slabs, len(blocks), layout.block_tokens, *held.shape[2:]))


def count_wrong_bytes(region: Region, layout: KVLayout, blocks: BlockTable, num_tokens: int, seed: int) -> int:
    """How many bytes of the first `num_tokens` tokens of `blocks` differ from the pattern. Raises BadRequest."""
    held = _read(_grid(region, layout), blocks).reshape(_shape(layout, -1))
    return int((held[:, :num_tokens] != _pattern(layout, num_tokens, seed)).sum())


def _pattern(layout: KVLayout, num_tokens: int, seed: int) -> Bytes:
    """Bytes of `_shape`, all below FINITE_BELOW."""
    return np.random.default_rng(seed).integers(0, FINITE_BELOW, _shape(layout, num_tokens), dtype=np.uint8)


def _shape(layout: KVLayout, num_tokens: int) -> tuple[int, int, int, int]:
    """[slabs, tokens, kv_heads, head_bytes]"""
    return layout.num_slabs, num_tokens, layout.num_kv_heads, layout.strides.head_bytes


def _read(grid: Grid, blocks: BlockTable) -> Bytes:
    """A copy in host memory."""
    held = grid[:, list(blocks)]
    found: Bytes = held if isinstance(held, np.ndarray) else held.cpu().numpy()
    return found


def _write(grid: Grid, blocks: BlockTable, held: Bytes) -> None:
    if isinstance(grid, np.ndarray):
        grid[:, list(blocks)] = held
    else:
        grid[:, list(blocks)] = grid.new_tensor(held)
        # A copy back waits until the GPU has written; the fabric would not.
        grid[0, 0, 0, 0, 0].item()


def _grid(region: Region, layout: KVLayout) -> Grid:
    """The cache as bytes [slabs, num_blocks, block_tokens, kv_heads, head_bytes].

    Raises BadRequest where the memory is neither the host's nor a CUDA GPU's.
    """
    at = layout.strides
    shape = (layout.num_slabs, layout.num_blocks, layout.block_tokens, layout.num_kv_heads, at.head_bytes)
    strides = (at.slab, at.block, at.token, at.head, 1)
    if region.device == "cpu":
        memory = (ctypes.c_uint8 * region.num_bytes).from_address(region.base)
        return np.lib.stride_tricks.as_strided(np.ctypeslib.as_array(memory), shape, strides)
    return _on_gpu(region, shape, strides)


def _on_gpu(region: Region, shape: Sequence[int], strides: Sequence[int]) -> Grid:
    if region.device != "cuda":
        raise BadRequest(f"No pattern can be written into {region.device} memory; try pairs of host or CUDA memory.")
    # Imported here: a shim whose cache is in host memory may have no torch.
    import torch  # noqa: PLC0415

    from engine_shim.fabric.device_memory import bytes_at  # noqa: PLC0415

    flat = bytes_at(region.base, region.num_bytes, torch.device("cuda", region.device_id))
    return flat.as_strided(shape, strides)
