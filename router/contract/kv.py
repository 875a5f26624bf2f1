"""What a KV cache looks like in memory.

A cache is a grid of blocks; a block holds `block_tokens` consecutive tokens of one sequence, for all layers, K and V.
Two orders exist, and both are one contiguous Region:

    block_first   [block][layer][K,V][token][kv_head][head_dim]     a block is one run of bytes
    layer_first   [layer][K,V][block][token][kv_head][head_dim]     a block is 2 * layers runs of bytes

An engine that orders a block's K and V of one layer in its own way has *pages*: `layer_first` is then
[layer][block][page], and a block moves whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1}


class KVOrder(StrEnum):
    """Which axis is outermost in memory."""

    BLOCK_FIRST = "block_first"
    LAYER_FIRST = "layer_first"


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one engine's KV cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    num_blocks: int
    dtype: str
    order: KVOrder = KVOrder.BLOCK_FIRST
    has_pages: bool = False
    """Blocks move whole, and only between caches of equal block size whose pages are alike."""

    def __post_init__(self) -> None:
        """Raise ValueError for a shape that cannot be: a peer may have sent it."""
        sizes = (self.num_layers, self.num_kv_heads, self.head_dim, self.block_tokens, self.num_blocks)
        if min(sizes) < 1:
            raise ValueError(f"every size of a KVLayout must be at least 1, got {sizes}")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"KV dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")

    @property
    def slab_token_bytes(self) -> int:
        """Bytes of one token in one layer, K or V."""
        return self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token, all layers, K and V."""
        return 2 * self.num_layers * self.slab_token_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers, K and V."""
        return self.block_tokens * self.token_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.num_blocks * self.block_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_tokens)


BlockTable = tuple[int, ...]
"""Ordered block ids of one sequence: token t lies in block `table[t // block_tokens]`."""


@dataclass(frozen=True, slots=True)
class Region:
    """Registered memory that holds one KV cache."""

    base: int
    """Address of the first byte, in the owner's address space."""
    num_bytes: int
    device: str
    """`cpu` or `cuda`."""
    device_id: int = 0
