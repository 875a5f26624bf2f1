"""ModelConfig: the shape of a decoder-only transformer, read from a Hugging Face `config.json`.

All supported families share one skeleton and differ in two switches:

    llama        norm - attention - norm - SwiGLU MLP
    qwen3        the same, and every head's query and key pass an RMSNorm of their own before RoPE (`qk_norm`)
    qwen3_moe    as qwen3, with a mixture of experts as MLP (`moe`)
    dots1        the same, with DeepSeek-V3's experts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine_shim.engine.reference.moe_config import MoeConfig, moe_from_hf
from router.contract.errors import ModelUnusable

FAMILIES = {"llama": False, "qwen3": True, "qwen3_moe": True, "dots1": True}
"""Family to `qk_norm`."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides every frequency by `factor`. `llama3` divides only those whose wavelength exceeds
    `original_context_tokens / low_freq_factor` and blends towards `original_context_tokens / high_freq_factor`.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    max_context_tokens: int
    tied_embeddings: bool
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None
    moe: MoeConfig | None = None
    """Experts of the layers that are not dense; None: all layers have an ordinary MLP."""

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    def __post_init__(self) -> None:
        """Raise ModelUnusable for a shape that cannot be."""
        sizes = (self.vocab_size, self.hidden_size, self.intermediate_size, self.num_layers, self.head_dim)
        if min(*sizes, self.num_heads, self.num_kv_heads) < 1 or self.num_heads % self.num_kv_heads:
            raise ModelUnusable(f"The checkpoint's configuration describes an impossible model: {self}.")
        if self.head_dim % 2:
            raise ModelUnusable(f"Head size {self.head_dim} is odd, so rotary embedding cannot be applied.")


def config_from_hf(raw: Mapping[str, object]) -> ModelConfig:
    """The ModelConfig that a decoded `config.json` describes.

    Raises:
        ModelUnusable: the family is not supported, a field is missing or ill-typed, or the model uses a variant
            (biases, another activation, another RoPE) that this engine does not compute.
    """
    family = str(raw.get("model_type"))
    if family not in FAMILIES:
        raise ModelUnusable(f"Model family {family!r} is not supported; use one of {', '.join(FAMILIES)}.")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(name):
            raise ModelUnusable(f"The checkpoint sets {name}, which this engine does not compute.")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelUnusable(f"Activation {raw['hidden_act']!r} is not supported; only silu is.")
    hidden_size, num_heads = _whole(raw, "hidden_size"), _whole(raw, "num_attention_heads")
    rope = _rope_fields(raw)
    return ModelConfig(
        family=family,
        vocab_size=_whole(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_whole(raw, "intermediate_size"),
        num_layers=_whole(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_whole(raw, "num_key_value_heads", num_heads),
        head_dim=_whole(raw, "head_dim", hidden_size // num_heads),
        rms_eps=_real(raw, "rms_norm_eps", 1e-6),
        rope_theta=_real(rope, "rope_theta", 10000.0),
        max_context_tokens=_whole(raw, "max_position_embeddings"),
        tied_embeddings=raw.get("tie_word_embeddings") is True,
        qk_norm=FAMILIES[family],
        rope_scaling=_rope_scaling(rope),
        moe=moe_from_hf(family, raw, _whole(raw, "num_hidden_layers")),
    )


def _rope_fields(raw: Mapping[str, object]) -> dict[str, object]:
    """RoPE's fields in one mapping, from the newer `rope_parameters` or the older `rope_theta` + `rope_scaling`."""
    fields: dict[str, object] = {"rope_theta": raw.get("rope_theta")}
    for name in ("rope_scaling", "rope_parameters"):
        nested = raw.get(name)
        if isinstance(nested, Mapping):
            fields.update(nested)
    return fields


def _rope_scaling(rope: Mapping[str, object]) -> RopeScaling | None:
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", _real(rope, "factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            _real(rope, "factor"),
            _real(rope, "low_freq_factor"),
            _real(rope, "high_freq_factor"),
            _whole(rope, "original_max_position_embeddings"),
        )
    raise ModelUnusable(f"RoPE scaling {kind!r} is not supported; default, linear and llama3 are.")


def _whole(raw: Mapping[str, object], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    if value is None:
        value = default
    if type(value) is not int:
        raise ModelUnusable(f"The checkpoint's config.json needs a whole number {name}, but has {value!r}.")
    return value


def _real(raw: Mapping[str, object], name: str, default: float | None = None) -> float:
    value = raw.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelUnusable(f"The checkpoint's config.json needs a number {name}, but has {value!r}.")
    return float(value)
