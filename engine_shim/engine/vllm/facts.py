"""What the connector reads of vLLM's configuration: whether it can be served, and what must be equal on both sides."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Any: vLLM's configuration objects, which are there only where vLLM is installed.
from typing import Any

from engine_shim.engine.vllm.memory import CacheShape
from router.contract.errors import ModelUnusable

HEAD_BYTES = 1 << 20


def check_fits(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raises ModelUnusable for what the connector cannot hand over."""
    parallel = vllm_config.parallel_config
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if getattr(parallel, name) != 1:
            raise ModelUnusable(
                f"Tandem's connector serves one worker per engine; start vLLM without --{name.replace('_', '-')}, "
                "and one instance per GPU, or use vLLM's own NIXL connector behind the router."
            )
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1 or type(groups[0].kv_cache_spec).__name__ != "FullAttentionSpec":
        kinds = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        raise ModelUnusable(
            f"Tandem's connector hands over full attention in one group of layers; this model: {kinds}."
        )
    if vllm_config.speculative_config is not None:
        raise ModelUnusable("Tandem's connector does not hand over drafts; start vLLM without speculative decoding.")


def shape_of(kv_cache_config: Any) -> CacheShape:
    """The one group's cache."""
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    return CacheShape(kv_cache_config.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)


def digest_of_model(vllm_config: Any, version: str) -> str:
    """Digest of vLLM's release, the model's configuration and weights, and what changes the numbers in its cache."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    facts = (
        version,
        model.hf_config.to_json_string(),
        str(model.dtype),
        str(cache.cache_dtype),
        str(model.quantization),
        str(model.revision),
        _digest_of_weights(str(model.model), str(vllm_config.load_config.load_format)),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _digest_of_weights(model: str, load_format: str) -> str:
    """Of a directory: names, sizes and the beginnings of its weights. Of a hub's model: its name (see `revision`)."""
    digest = hashlib.sha256(load_format.encode())
    folder = Path(model)
    if not folder.is_dir():
        digest.update(model.encode())
        return digest.hexdigest()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.gguf")]):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as weights:
            digest.update(weights.read(HEAD_BYTES))
    return digest.hexdigest()
