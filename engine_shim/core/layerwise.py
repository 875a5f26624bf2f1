"""Whether some layers of a prompt's last chunk are worth a WRITE of their own (see `push`)."""

from __future__ import annotations

from router.contract.kv import KVLayout, KVOrder

LAYER_BLOCK_BYTES = 1 << 18
"""From here on a block in host memory is worth a descriptor of its own: 2 us, as long as 256 KiB take at 130 GB/s."""


def layers_pay(source: KVLayout, *, gathers: bool, on_host: bool) -> bool:
    """True when a push may go layer by layer at little cost: its pieces are no more than those of whole blocks, or they
    are gathered, or each of them is worth posting. Otherwise runs of whole blocks, which are few, would fall apart.

    GPU memory without a ring is such a case whatever the size of a block: UCX takes 24 us for 800 KB there, one after
    the other (deploy/benchmarks, H200)."""
    worth_posting = on_host and source.block_bytes >= LAYER_BLOCK_BYTES
    return gathers or source.order is KVOrder.LAYER_FIRST or worth_posting
