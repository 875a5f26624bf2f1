"""What a KV cache looks like in memory.

A cache is a grid of blocks; a block holds `block_tokens` consecutive tokens of one sequence, for all layers, K and V.
Three orders exist, and all are one contiguous Region:

    block_first   [block][layer][K,V][token][kv_head][head_dim]     a block is one run of bytes
    layer_first   [layer][K,V][block][token][kv_head][head_dim]     a block is 2 * layers runs of bytes
    head_major    [block][kv_head][layer][K,V][token][head_dim]     so are some heads of a block: for tensor parallelism

An engine that orders a block's K and V of one layer in its own way has *pages*: `layer_first` is then
[layer][block][page], and a block moves whole or not at all.

A *latent* cache (multi-head latent attention) has one vector a token and layer instead of K and V, as one head.

Of an engine with `tp_size` tensor-parallel ranks a layout describes one rank's cache. Ranks hold equal shares of the
model's KV heads, in order; with more ranks than heads, neighbouring ranks hold the same one. Latents are on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1}


class KVOrder(StrEnum):
    """Which axis is outermost in memory."""

    BLOCK_FIRST = "block_first"
    LAYER_FIRST = "layer_first"
    HEAD_MAJOR = "head_major"


@dataclass(frozen=True, slots=True)
class Strides:
    """Bytes between neighbours; one token of one head in one slab is `head_bytes` bytes without a gap.

    A slab is K or V of one layer, K first: `layer * num_parts + part`.
    """

    block: int
    slab: int
    token: int
    head: int
    head_bytes: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one engine's KV cache."""

    num_layers: int
    num_kv_heads: int
    """Of this rank."""
    head_dim: int
    block_tokens: int
    num_blocks: int
    dtype: str
    order: KVOrder = KVOrder.BLOCK_FIRST
    has_pages: bool = False
    """Blocks move whole, and only between caches of equal block size whose pages are alike."""
    latent: bool = False
    tp_size: int = 1
    tp_rank: int = 0
    model_kv_heads: int = 0
    """Of all ranks together; 0: this rank has them all."""

    def __post_init__(self) -> None:
        """Raise ValueError for a shape that cannot be: a peer may have sent it."""
        sizes = (self.num_layers, self.num_kv_heads, self.head_dim, self.block_tokens, self.num_blocks, self.tp_size)
        if min(sizes) < 1:
            raise ValueError(f"every size of a KVLayout must be at least 1, got {sizes}")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"KV dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(f"there is no tensor-parallel rank {self.tp_rank} of {self.tp_size}")
        held = 1 if self.latent else heads_per_rank(self.all_kv_heads, self.tp_size)
        if self.num_kv_heads != held:
            raise ValueError(
                f"one of {self.tp_size} ranks holds {held} of {self.all_kv_heads} KV heads, not {self.num_kv_heads}"
            )

    @property
    def all_kv_heads(self) -> int:
        """KV heads of the model."""
        return self.model_kv_heads or self.num_kv_heads

    @property
    def first_head(self) -> int:
        """The first of the model's KV heads that this rank holds."""
        return 0 if self.latent else self.tp_rank * self.all_kv_heads // self.tp_size

    @property
    def num_parts(self) -> int:
        """K and V, or the latent alone."""
        return 1 if self.latent else 2

    @property
    def num_slabs(self) -> int:
        """Parts of all layers."""
        return self.num_parts * self.num_layers

    @property
    def strides(self) -> Strides:
        """Where bytes lie, without pages."""
        head = self.head_dim * DTYPE_BYTES[self.dtype]
        if self.order is KVOrder.HEAD_MAJOR:
            slab = self.block_tokens * head
            return Strides(self.block_bytes, slab, head, self.num_slabs * slab, head)
        slab_block = self.block_tokens * self.slab_token_bytes
        if self.order is KVOrder.BLOCK_FIRST:
            return Strides(self.block_bytes, slab_block, self.slab_token_bytes, head, head)
        return Strides(slab_block, slab_block * self.num_blocks, self.slab_token_bytes, head, head)

    @property
    def slab_token_bytes(self) -> int:
        """Bytes of one token in one layer, K or V."""
        return self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token, all layers, K and V."""
        return self.num_slabs * self.slab_token_bytes

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


def heads_per_rank(all_kv_heads: int, tp_size: int) -> int:
    """KV heads of one tensor-parallel rank. Raises ValueError where ranks cannot have equal shares."""
    more, fewer = max(all_kv_heads, tp_size), min(all_kv_heads, tp_size)
    if more % fewer:
        raise ValueError(f"{all_kv_heads} KV heads cannot be shared equally by {tp_size} tensor-parallel ranks")
    return max(all_kv_heads // tp_size, 1)


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
