from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from engine_shim.engine.reference.config import RopeScaling
from engine_shim.engine.reference.gguf import GGUFCheckpoint
from router.contract.errors import ModelUnusable
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN3, SeededCheckpoint

Kind = gguf.GGMLQuantizationType
NAMES = {
    "model.layers.1.self_attn.q_proj.weight": ("blk.1.attn_q.weight", (48, 48)),
    "model.layers.1.self_attn.k_proj.weight": ("blk.1.attn_k.weight", (16, 48)),
    "model.layers.1.mlp.down_proj.weight": ("blk.1.ffn_down.weight", (48, 96)),
    "model.layers.0.input_layernorm.weight": ("blk.0.attn_norm.weight", (48,)),
    "model.norm.weight": ("output_norm.weight", (48,)),
    "model.embed_tokens.weight": ("token_embd.weight", (300, 48)),
}


def values_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    out = torch.empty(shape)
    SeededCheckpoint(TINY_LLAMA).read(name, out)
    return out.numpy()


def interleaved(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Row order of llama.cpp: of each head, first and second half in turn."""
    return np.stack([rows.reshape(-1, 2, head_dim // 2, rows.shape[1])[:, half] for half in range(2)], axis=2).reshape(
        rows.shape
    )


def write(path, config=TINY_LLAMA, kind=Kind.F32, extra=None, without=()):
    writer = gguf.GGUFWriter(path, config.family)
    for name, value in (
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("block_count", config.num_layers),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("context_length", config.max_context_tokens),
    ):
        if name not in without:
            writer.add_uint32(f"{config.family}.{name}", value)
    writer.add_float32(f"{config.family}.attention.layer_norm_rms_epsilon", config.rms_eps)
    writer.add_float32(f"{config.family}.rope.freq_base", config.rope_theta)
    for name, value in (extra or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{config.family}.{name}", value)
    for name, (stored_name, shape) in NAMES.items():
        values = values_of(name, shape)
        if config.family == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, config.head_dim)
        if len(shape) == 1 or shape[1] % 32 or kind is Kind.F32:
            writer.add_tensor(stored_name, values)
        elif kind is Kind.F16:
            writer.add_tensor(stored_name, values.astype(np.float16))
        else:
            writer.add_tensor(stored_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(checkpoint, name):
    out = torch.empty(NAMES[name][1])
    checkpoint.read(name, out)
    return out.numpy()


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
def test_tensors_come_in_hugging_faces_names_and_order(tmp_path, config):
    checkpoint = GGUFCheckpoint(write(tmp_path / "m.gguf", config))
    for name, (_, shape) in NAMES.items():
        assert np.array_equal(read(checkpoint, name), values_of(name, shape))


@pytest.mark.parametrize(
    ("kind", "step"), [(Kind.F16, 2e-3), (Kind.Q8_0, 0.01), (Kind.Q4_0, 0.12), (Kind.Q4_1, 0.08), (Kind.BF16, 0.01)]
)
def test_stored_types_are_dequantised(tmp_path, kind, step):
    name = "model.layers.1.mlp.down_proj.weight"
    checkpoint = GGUFCheckpoint(write(tmp_path / "m.gguf", kind=kind))
    values = values_of(name, NAMES[name][1])
    error = np.abs(read(checkpoint, name) - values).max()
    assert 0 < error < step * np.abs(values).max()


def test_the_configuration_is_read(tmp_path):
    # float32 fields lose the last digits of rms_eps.
    config = GGUFCheckpoint(write(tmp_path / "m.gguf")).config
    assert replace(config, rms_eps=TINY_LLAMA.rms_eps) == TINY_LLAMA
    scaled = write(tmp_path / "s.gguf", extra={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert GGUFCheckpoint(scaled).config.rope_scaling == RopeScaling("linear", 4.0)


def test_equal_weights_have_equal_digests(tmp_path):
    def digest(path, names=tuple(NAMES)):
        checkpoint = GGUFCheckpoint(path)
        for name in names:
            read(checkpoint, name)
        return checkpoint.digest()

    first, second = write(tmp_path / "a.gguf"), write(tmp_path / "b.gguf")
    assert digest(first) == digest(second)
    raw = bytearray(second.read_bytes())
    raw[-1] ^= 1
    second.write_bytes(raw)
    assert digest(first) != digest(second)


def test_what_cannot_be_used_is_refused(tmp_path):
    for broken in (
        {"extra": {"rope.scaling.type": "yarn"}},
        {"without": ("block_count",)},
        {"config": replace(TINY_LLAMA, family="mamba")},
    ):
        with pytest.raises(ModelUnusable):
            GGUFCheckpoint(write(tmp_path / "m.gguf", **broken))
    checkpoint = GGUFCheckpoint(write(tmp_path / "m.gguf"))
    assert not checkpoint.has("lm_head.weight")
    for name, sizes in (("lm_head.weight", (300, 48)), ("model.norm.weight", (47,))):
        with pytest.raises(ModelUnusable):
            checkpoint.read(name, torch.empty(sizes))
    with pytest.raises(ModelUnusable):
        GGUFCheckpoint(tmp_path / "absent.gguf")


def test_a_storage_type_without_a_reader_is_refused(tmp_path):
    path = write(tmp_path / "m.gguf", kind=Kind.Q8_0)
    checkpoint = GGUFCheckpoint(path)
    at = checkpoint._tensors["blk.1.ffn_down.weight"]
    checkpoint._tensors["blk.1.ffn_down.weight"] = replace(at, kind=999)
    with pytest.raises(ModelUnusable, match="Q8_0"):
        read(checkpoint, "model.layers.1.mlp.down_proj.weight")


def test_rows_that_end_inside_a_group_are_refused(tmp_path):
    checkpoint = GGUFCheckpoint(write(tmp_path / "m.gguf"))
    at = checkpoint._tensors["token_embd.weight"]
    checkpoint._tensors["token_embd.weight"] = replace(at, kind=Kind.Q8_0)
    with pytest.raises(ModelUnusable, match="rows of 48 values in groups of 32"):
        read(checkpoint, "model.embed_tokens.weight")
