"""Which two KV caches can hand KV over."""

from __future__ import annotations

from router.contract.errors import LayoutMismatch
from router.contract.kv import KVLayout, KVOrder


def check_layouts(src: KVLayout, dst: KVLayout) -> None:
    """Both caches hold the same values, if in another arrangement.

    Raises:
        LayoutMismatch: layers, heads of the model, head size, dtype or the kind of attention differ, or they have pages
            and those differ, or hold other heads. Blame: deployment.
    """
    ours = (src.num_layers, src.all_kv_heads, src.head_dim, src.dtype, src.latent)
    theirs = (dst.num_layers, dst.all_kv_heads, dst.head_dim, dst.dtype, dst.latent)
    if ours != theirs:
        raise LayoutMismatch(
            "Prefill and decode hold different KV caches (layers, KV heads, head size, dtype, latent): "
            f"{ours} against {theirs}; serve the same checkpoint with the same KV dtype on both."
        )
    if (src.has_pages or dst.has_pages) and _page_facts(src) != _page_facts(dst):
        raise LayoutMismatch(
            "Blocks of these KV caches can only move whole, and theirs differ (block tokens, order, heads of a rank): "
            f"{_page_facts(src)} against {_page_facts(dst)}; serve both with the same engine, block size and "
            "tensor-parallel size."
        )


def _page_facts(layout: KVLayout) -> tuple[bool, int, KVOrder, int]:
    return layout.has_pages, layout.block_tokens, layout.order, layout.num_kv_heads
