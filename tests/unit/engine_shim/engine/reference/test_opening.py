from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings
from router.contract.errors import ModelUnusable
from tests.support.tiny_models import (
    TINY_LLAMA,
    SeededCheckpoint,
    ask,
    generate,
    prompt_of,
    tiny_engine,
    tiny_tokenizer,
)

PARTS = {
    "self_attn.q_proj": (48, 48),
    "self_attn.k_proj": (16, 48),
    "self_attn.v_proj": (16, 48),
    "self_attn.o_proj": (48, 48),
    "mlp.gate_proj": (80, 48),
    "mlp.up_proj": (80, 48),
    "mlp.down_proj": (48, 80),
    "input_layernorm": (48,),
    "post_attention_layernorm": (48,),
}


@pytest.fixture
def directory(tmp_path):
    """The tiny Llama as a Hugging Face directory."""
    sizes = {f"model.layers.{layer}.{part}.weight": shape for layer in range(2) for part, shape in PARTS.items()}
    sizes |= {"model.embed_tokens.weight": (300, 48), "model.norm.weight": (48,)}
    tensors = {name: torch.empty(shape) for name, shape in sizes.items()}
    for name, tensor in tensors.items():
        SeededCheckpoint(TINY_LLAMA).read(name, tensor)
    save_file(tensors, tmp_path / "model.safetensors")
    config = {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tiny_tokenizer()._backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_directory_becomes_an_engine(directory):
    settings = ReferenceSettings(str(directory), num_blocks=64, num_threads=1, numerics=Numerics.INVARIANT)
    engine = open_engine(settings)
    assert torch.get_num_threads() == 1
    assert engine.card.name == directory.name
    prompt = prompt_of(40)
    assert generate(engine, ask("a", prompt)) == generate(tiny_engine(), ask("a", prompt))
    assert open_engine(settings).card.weights_digest == engine.card.weights_digest


def test_what_cannot_be_opened_is_said_in_one_sentence(directory, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for settings in (ReferenceSettings("absent"), ReferenceSettings(str(directory), device="cuda")):
        with pytest.raises(ModelUnusable) as caught:
            open_engine(settings)
        assert caught.value.message.endswith(".")
    (directory / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelUnusable):
        open_engine(ReferenceSettings(str(directory)))
