"""vLLM's KV cache as a Region and a KVLayout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.contract.errors import ModelUnusable
from router.contract.kv import KVLayout, KVOrder, Region

DTYPE_NAMES = {"torch.float32": "float32", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}


class Tensor(Protocol):
    """What is read of one layer's cache, a torch tensor [block, ...]."""

    shape: Sequence[int]
    dtype: object
    device: object

    def stride(self) -> Sequence[int]:
        """Elements between neighbours, an axis each."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def data_ptr(self) -> int:
        """Address of the first element."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What vLLM says of its cache."""

    num_blocks: int
    block_tokens: int
    num_kv_heads: int
    head_dim: int


def describe(caches: Mapping[str, Tensor], shape: CacheShape) -> tuple[KVLayout, Region, str]:
    """Layout, memory, and a description of a page, which must be equal on prefill and decode.

    Args:
        caches: one tensor a layer, in the model's order of layers.
    Raises:
        ModelUnusable: the cache is none of [layer][block][page] and [block][layer][page], without gaps.
    """
    tensors = list(caches.values())
    if not tensors:
        raise ModelUnusable("vLLM has no KV cache to hand over; serve a model with attention layers.")
    first = tensors[0]
    page_bytes = 2 * shape.block_tokens * shape.num_kv_heads * shape.head_dim * first.element_size()
    block_stride = first.stride()[0] * first.element_size()
    layers = [tensor.data_ptr() - first.data_ptr() for tensor in tensors]
    facts = {(tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype)) for tensor in tensors}
    dtype = DTYPE_NAMES.get(str(first.dtype))
    if len(facts) > 1 or dtype is None or first.shape[0] != shape.num_blocks or not _is_dense(first, page_bytes):
        raise ModelUnusable(
            f"Tandem hands over KV caches whose layers are alike and dense (here: {sorted(map(str, facts))}, "
            f"{page_bytes} bytes a page); serve a model with full attention in all layers and an unquantised KV cache."
        )
    order = _order(layers, block_stride, page_bytes, shape.num_blocks)
    layout = KVLayout(
        len(tensors),
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_tokens,
        shape.num_blocks,
        dtype,
        order,
        has_pages=True,
    )
    device, _, number = str(first.device).partition(":")
    region = Region(first.data_ptr(), layout.total_bytes, device, int(number or 0))
    return layout, region, f"{tuple(first.shape[1:])} {tuple(first.stride()[1:])}"


def _is_dense(tensor: Tensor, page_bytes: int) -> bool:
    """True when one block of one layer is `page_bytes` bytes without a gap."""
    sizes, strides = tensor.shape[1:], tensor.stride()[1:]
    spread = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    num_elements = 1
    for size in sizes:
        num_elements *= size
    return spread == num_elements and num_elements * tensor.element_size() == page_bytes


def _order(layers: list[int], block_stride: int, page_bytes: int, num_blocks: int) -> KVOrder:
    step = layers[1] if len(layers) > 1 else page_bytes * num_blocks
    if layers == [index * step for index in range(len(layers))]:
        if block_stride == page_bytes and step == page_bytes * num_blocks:
            return KVOrder.LAYER_FIRST
        if step == page_bytes and block_stride == page_bytes * len(layers):
            return KVOrder.BLOCK_FIRST
    raise ModelUnusable(
        "The layers of vLLM's KV cache do not lie side by side in memory, which Tandem needs to move them; "
        "serve a model whose layers are alike, without a host-resident or packed cache."
    )
