from __future__ import annotations

import pytest

from engine_shim.engine.reference.config import RopeScaling, config_from_hf
from router.contract.errors import ModelUnusable
from tests.support.tiny_models import LLAMA_JSON


def test_a_llama_configuration_is_read():
    config = config_from_hf(LLAMA_JSON)
    assert (config.head_dim, config.group_size, config.qk_norm, config.tied_embeddings) == (8, 4, False, True)
    assert (config.rope_theta, config.rope_scaling, config.max_context_tokens) == (500000.0, None, 2048)


def test_qwen3_has_its_own_head_size_and_norms_of_query_and_key():
    config = config_from_hf(LLAMA_JSON | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": False})
    assert (config.head_dim, config.qk_norm, config.tied_embeddings) == (16, True, False)


def test_what_is_absent_has_the_familys_default():
    bare = {name: value for name, value in LLAMA_JSON.items() if name not in ("num_key_value_heads", "rope_theta")}
    config = config_from_hf(bare)
    assert (config.num_kv_heads, config.rope_theta) == (8, 10000.0)


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_is_read_from_either_field(field):
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 7.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    config = config_from_hf(LLAMA_JSON | {field: llama3})
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 1024)
    assert config.rope_theta == 7.0
    assert config_from_hf(LLAMA_JSON | {field: {"type": "linear", "factor": 2}}).rope_scaling == RopeScaling(
        "linear", 2.0
    )


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mamba"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"num_key_value_heads": 3},
        {"hidden_size": "64"},
        {"vocab_size": None},
        {"num_hidden_layers": 0},
        {"head_dim": 7},
        {"rms_norm_eps": True},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    ],
    ids=str,
)
def test_what_the_engine_does_not_compute_is_refused(change):
    with pytest.raises(ModelUnusable):
        config_from_hf(LLAMA_JSON | change)
