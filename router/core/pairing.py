"""Pairing: which decode instance can take which prefill instance's KV cache.

Tandem's shims check layouts themselves when they meet, so equal compatibility hashes are enough. Plain vLLM servers
find out in the middle of a request, and some mismatches end the engine, so their connectors' rules are checked here
first (vLLM 0.32 and 0.33, NixlConnector and NixlPushConnector):

    tensor parallel     one size divides the other
    pipeline parallel   push only, and only on prefill
    block size          pull: decode's is a multiple of prefill's; push: prefill's is a multiple of decode's, and they
                        are equal where prefill has more tensor-parallel ranks
"""

from __future__ import annotations

from router.contract.instance import EngineKind, Instance, KVIdentity, Mode


def feeds(prefill: Instance, decode: Instance, mode: Mode) -> bool:
    """True when `decode` can take `prefill`'s KV cache in this mode."""
    source, target = prefill.kv, decode.kv
    if source is None or target is None or prefill.engine is not decode.engine:
        return False
    if source.compat_hash != target.compat_hash or mode not in source.modes or mode not in target.modes:
        return False
    return prefill.engine is not EngineKind.VLLM or _shapes_fit(source, target, mode)


def _shapes_fit(source: KVIdentity, target: KVIdentity, mode: Mode) -> bool:
    """What is not known (0) fits."""
    writers, takers = source.tp_size, target.tp_size or source.tp_size
    if writers and takers and writers % takers and takers % writers:
        return False
    if target.pp_size != 1 or (source.pp_size != 1 and mode is not Mode.PUSH):
        return False
    written, taken = source.tokens_per_block, target.tokens_per_block
    if not written or not taken or written == taken:
        return True
    if mode is Mode.PULL:
        return taken % written == 0
    return written % taken == 0 and writers <= takers
