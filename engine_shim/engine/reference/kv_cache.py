"""KVCache: the paged keys and values of all sequences, one contiguous Region.

A block holds `block_tokens` tokens of one sequence, for all layers. All memory orders are seen here through views of
one shape, so the model does not know which one it runs on:

    layers[l]              [num_blocks, block_tokens, 2 (K, V), kv_heads, head_dim]
    keys[l], values[l]     [num_blocks, block_tokens * kv_heads * head_dim], or not flattened where heads lie apart

All are strided; a row of `keys[l]` is contiguous unless heads lie apart, so that whole blocks are copied quickly.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch

from router.contract.kv import KVLayout, KVOrder, Region

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


_AXES = {
    KVOrder.BLOCK_FIRST: (1, 0, 3, 2, 4, 5),
    KVOrder.LAYER_FIRST: (0, 3, 1, 2, 4, 5),
    KVOrder.HEAD_MAJOR: (1, 4, 0, 3, 2, 5),
}
"""Memory's axes, outermost first, of (layer, block, token, K or V, head, number in the head)."""


class KVCache:
    """Memory of the blocks. It is zero at the start, and its pages are first touched when a block is written."""

    def __init__(self, layout: KVLayout, device: torch.device, memory: mmap.mmap | torch.Tensor | None = None) -> None:
        """Take `layout.total_bytes` on `device`, or lie in `memory`."""
        self.layout = layout
        dtype = TORCH_DTYPES[layout.dtype]
        sizes = (layout.num_layers, layout.num_blocks, layout.block_tokens, 2, layout.num_kv_heads, layout.head_dim)
        axes = _AXES[layout.order]
        self._block_axis = axes.index(1)
        self.tensor = _zeros(layout.total_bytes, dtype, device, memory).view([sizes[axis] for axis in axes])
        """The whole cache, contiguous, in the order of the layout."""
        by_layer = self.tensor.permute([axes.index(axis) for axis in range(len(axes))])
        self.layers = tuple(by_layer[layer] for layer in range(layout.num_layers))
        flat = layout.order is not KVOrder.HEAD_MAJOR
        self.keys, self.values = (
            tuple(layer[:, :, part].flatten(1) if flat else layer[:, :, part] for layer in self.layers)
            for part in range(2)
        )
        self.region = Region(self.tensor.data_ptr(), layout.total_bytes, device.type, device.index or 0)

    def clear(self, blocks: list[int]) -> None:
        """These blocks hold zeros.

        Attention multiplies what a row may not see by 0, and 0 times NaN is NaN: a block whose former owner left NaN
        (a WRITE that broke half-way, weights that overflow) would spoil the sequence that has it next.
        """
        where = torch.tensor(blocks, dtype=torch.int64).to(self.tensor.device, non_blocking=True)
        self.tensor.index_fill_(self._block_axis, where, 0.0)

    def write(self, layer: int, places: tuple[torch.Tensor, torch.Tensor], kv: torch.Tensor) -> None:
        """Row r of `kv` [rows, 2, kv_heads, head_dim] is in block `places[0][r]` at token `places[1][r]`."""
        self.layers[layer].index_put_(places, kv)

    def mark(self) -> Callable[[], None] | None:
        """Blocks, on any thread, until all that has been launched so far is in memory, for others than the device's
        stream to read too; None when it is already."""
        if self.tensor.device.type != "cuda":
            return None
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.tensor.device))
        return event.synchronize


def _zeros(
    num_bytes: int, dtype: torch.dtype, device: torch.device, memory: mmap.mmap | torch.Tensor | None
) -> torch.Tensor:
    if isinstance(memory, torch.Tensor):
        return memory.view(dtype)
    if device.type != "cpu":
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device).view(dtype)
    # torch.zeros writes every page; an anonymous mapping is zero without having been touched.
    return torch.frombuffer(memory or mmap.mmap(-1, num_bytes), dtype=dtype)
