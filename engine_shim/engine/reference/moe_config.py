"""MoeConfig: the mixture of experts of a model, read from its `config.json`.

qwen3_moe    softmax over all experts, the K largest; no shared expert
dots1        as DeepSeek-V3: sigmoid scores, a bias that only chooses, the best groups first, a shared expert, the
             first layers dense; with Qwen3's attention
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from router.contract.errors import ModelUnusable


class Scoring(StrEnum):
    """How a gate's logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """The experts of each sparse layer."""

    num_experts: int
    top_k: int
    intermediate_size: int
    """Of one routed expert."""
    scoring: Scoring
    normalised: bool
    """The K weights are divided by their sum."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with an ordinary MLP."""
    shared_size: int = 0
    """Intermediate size of the expert that every token visits; 0: there is none."""
    num_groups: int = 1
    top_groups: int = 1
    """Experts are chosen among those of so many groups."""
    scaling: float = 1.0
    """The weights are multiplied by this."""

    def __post_init__(self) -> None:
        """Raise ModelUnusable for experts that cannot be."""
        sizes = (self.num_experts, self.top_k, self.intermediate_size, self.num_groups, self.top_groups)
        fits = self.num_groups and self.num_experts % self.num_groups == 0 and self.top_groups <= self.num_groups
        group = self.num_experts // max(self.num_groups, 1)
        if min(sizes) < 1 or not fits or self.top_k > group * self.top_groups:
            raise ModelUnusable(f"The checkpoint's configuration describes impossible experts: {self}.")
        if self.num_groups > 1 and group < 2:
            raise ModelUnusable("Groups of one expert cannot be scored by their best two; use groups of two or more.")


def moe_from_hf(family: str, raw: Mapping[str, object], num_layers: int) -> MoeConfig | None:
    """The MoeConfig of a `qwen3_moe` or `dots1` model; None for other families. Raises ModelUnusable."""
    if family == "qwen3_moe":
        return _qwen3(raw, num_layers)
    return _dots1(raw, num_layers) if family == "dots1" else None


def _qwen3(raw: Mapping[str, object], num_layers: int) -> MoeConfig:
    num_experts = _whole(raw, "num_experts", "num_local_experts")
    step, dense = _whole(raw, "decoder_sparse_step", default=1), raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ModelUnusable(f"The checkpoint's mlp_only_layers must be a list, not {dense!r}.")
    sparse = {layer for layer in range(num_layers) if step and (layer + 1) % step == 0} - set(dense)
    return MoeConfig(
        num_experts=num_experts,
        top_k=_whole(raw, "num_experts_per_tok"),
        intermediate_size=_whole(raw, "moe_intermediate_size"),
        scoring=Scoring.SOFTMAX,
        normalised=raw.get("norm_topk_prob") is True,
        dense_layers=frozenset(range(num_layers)) - sparse,
    )


def _dots1(raw: Mapping[str, object], num_layers: int) -> MoeConfig:
    size = _whole(raw, "moe_intermediate_size")
    scaling = raw.get("routed_scaling_factor", 1.0)
    if isinstance(scaling, bool) or not isinstance(scaling, int | float):
        raise ModelUnusable(f"The checkpoint's routed_scaling_factor must be a number, not {scaling!r}.")
    if "sliding_attention" in (raw.get("layer_types") or ()):  # type: ignore[operator]
        raise ModelUnusable("The checkpoint has layers with sliding attention, which this engine does not compute.")
    return MoeConfig(
        num_experts=_whole(raw, "n_routed_experts", "num_local_experts"),
        top_k=_whole(raw, "num_experts_per_tok"),
        intermediate_size=size,
        scoring=Scoring.SIGMOID,
        normalised=raw.get("norm_topk_prob") is not False,
        dense_layers=frozenset(range(min(_whole(raw, "first_k_dense_replace", default=0), num_layers))),
        shared_size=size * _whole(raw, "n_shared_experts", default=0),
        num_groups=_whole(raw, "n_group", default=1),
        top_groups=_whole(raw, "topk_group", default=1),
        scaling=float(scaling),
    )


def _whole(raw: Mapping[str, object], *names: str, default: int | None = None) -> int:
    """The first of these names that is there."""
    value = next((raw[name] for name in names if raw.get(name) is not None), default)
    if type(value) is not int:
        raise ModelUnusable(f"The checkpoint's config.json needs a whole number {names[0]}, but has {value!r}.")
    return value
