"""An oracle that shares no code with the engine: transformers, float32, on the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.checkpoint import locate
from engine_shim.engine.reference.gguf import GGUFCheckpoint
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.safetensors_dir import SafetensorsCheckpoint
from engine_shim.engine.reference.settings import Numerics
from engine_shim.engine.reference.weights import load_weights
from router.contract.kv import KVLayout
from tests.support.oracle import golden_logits
from tests.support.tiny_models import prompt_of

pytestmark = pytest.mark.timeout(300)

CPU = torch.device("cpu")
NUMERICS = pytest.mark.parametrize("numerics", list(Numerics))
TINY = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN3_MOE = {
    "head_dim": 16,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
DOTS1 = {
    "head_dim": 16,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}


@torch.inference_mode()
def engine_logits(checkpoint, numerics: Numerics, prompt: tuple[int, ...], chunk_tokens: int) -> torch.Tensor:
    """[tokens, vocab], computed chunk by chunk through the paged cache."""
    config, kernels = checkpoint.config, kernels_of(numerics)
    weights = load_weights(checkpoint, torch.float32, CPU, kernels)
    num_blocks = len(prompt) // 16 + 1
    layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, 16, num_blocks, "float32")
    cache, model = KVCache(layout, CPU), Model(config, weights, 512, kernels)
    table = list(reversed(range(num_blocks)))
    rows = []
    for begin in range(0, len(prompt), chunk_tokens):
        part = prompt[begin : begin + chunk_tokens]
        rows.append(model.logits(model.forward(make_batch([Chunk(part, begin, table, len(part))], 16, CPU), cache)))
    return torch.cat(rows)


def saved(folder: Path, family: str, seed: int = 0, **changes: object) -> torch.nn.Module:
    """A seeded tiny model of transformers, and its files in `folder`."""
    import transformers

    torch.manual_seed(seed)
    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
        "dots1": (transformers.Dots1Config, transformers.Dots1ForCausalLM),
    }[family]
    model = model_class(config_class(**TINY | changes)).float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.uniform_(buffer, -0.3, 0.3)
    model.save_pretrained(folder, max_shard_size=changes.get("max_shard_size", "1GB"))
    return model


@NUMERICS
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": LINEAR}),
        ("qwen3", {"head_dim": 32}),
        ("qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
        ("qwen3_moe", QWEN3_MOE),
        ("qwen3_moe", QWEN3_MOE | {"norm_topk_prob": False, "mlp_only_layers": [1]}),
        ("dots1", DOTS1),
        ("dots1", DOTS1 | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}),
    ],
    ids=[
        "llama",
        "tied",
        "llama3-rope",
        "linear-rope",
        "qwen3",
        "qwen3-tied",
        "qwen3-moe",
        "qwen3-moe-dense-layer",
        "dots1",
        "dots1-no-groups",
    ],
)
def test_logits_of_saved_checkpoints_are_equal(tmp_path, numerics, family, changes):
    theirs = saved(tmp_path, family, **changes)
    prompt = prompt_of(150)
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt])).logits[0]
    logits = engine_logits(SafetensorsCheckpoint(tmp_path), numerics, prompt, 40)
    assert expected.abs().max() > 1
    assert torch.allclose(logits, expected, atol=2e-4, rtol=1e-4)


def test_a_sharded_checkpoint_is_read(tmp_path):
    theirs = saved(tmp_path, "llama")
    theirs.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    prompt = prompt_of(30)
    whole, sharded = (
        engine_logits(SafetensorsCheckpoint(folder), Numerics.INVARIANT, prompt, 30)
        for folder in (tmp_path, tmp_path / "sharded")
    )
    assert torch.equal(whole, sharded)


@pytest.mark.needs("model")
@NUMERICS
def test_logits_of_smollm2_are_equal(numerics):
    golden = golden_logits()
    logits = engine_logits(GGUFCheckpoint(locate("smollm2-135m")), numerics, tuple(golden["prompt"].tolist()), 37)
    assert torch.allclose(logits[:, golden["sampled"]], golden["logits"], atol=2e-3)
    assert torch.equal(logits.argmax(-1), golden["likeliest"])
    assert golden["logits"].abs().max() > 10
