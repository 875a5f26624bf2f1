"""Names and shapes of a checkpoint's tensors, as Hugging Face has them."""

from __future__ import annotations

from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.moe_config import MoeConfig, Scoring

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: ModelConfig) -> Shapes:
    """All tensors of a model of this shape."""
    shapes: Shapes = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for index in range(config.num_layers):
        shapes |= _layer(config, index)
    return shapes


def _layer(config: ModelConfig, index: int) -> Shapes:
    at, hidden, head_dim = f"model.layers.{index}", config.hidden_size, config.head_dim
    q_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes: Shapes = {
        f"{at}.input_layernorm.weight": (hidden,),
        f"{at}.post_attention_layernorm.weight": (hidden,),
        f"{at}.self_attn.q_proj.weight": (q_rows, hidden),
        f"{at}.self_attn.k_proj.weight": (kv_rows, hidden),
        f"{at}.self_attn.v_proj.weight": (kv_rows, hidden),
        f"{at}.self_attn.o_proj.weight": (hidden, q_rows),
    }
    if config.qk_norm:
        shapes |= {f"{at}.self_attn.{part}_norm.weight": (head_dim,) for part in "qk"}
    if config.moe is None or index in config.moe.dense_layers:
        return shapes | _mlp(f"{at}.mlp", hidden, config.intermediate_size)
    return shapes | _mixture(config.moe, f"{at}.mlp", hidden)


def _mixture(moe: MoeConfig, at: str, hidden: int) -> Shapes:
    shapes: Shapes = {f"{at}.gate.weight": (moe.num_experts, hidden)}
    if moe.scoring is Scoring.SIGMOID:
        shapes[f"{at}.gate.e_score_correction_bias"] = (moe.num_experts,)
    if moe.shared_size:
        shapes |= _mlp(f"{at}.shared_experts", hidden, moe.shared_size)
    for number in range(moe.num_experts):
        shapes |= _mlp(f"{at}.experts.{number}", hidden, moe.intermediate_size)
    return shapes


def _mlp(at: str, hidden: int, size: int) -> Shapes:
    return {
        f"{at}.gate_proj.weight": (size, hidden),
        f"{at}.up_proj.weight": (size, hidden),
        f"{at}.down_proj.weight": (hidden, size),
    }
