from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.settings import Numerics
from engine_shim.engine.reference.weights import load_weights
from router.contract.errors import ModelUnusable
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN3, SeededCheckpoint

CPU = torch.device("cpu")


def load(checkpoint, dtype=torch.float32):
    return load_weights(checkpoint, dtype, CPU, kernels_of(Numerics.FAST))


def test_projections_of_one_input_are_stacked():
    checkpoint = SeededCheckpoint(TINY_LLAMA)
    layer = load(checkpoint).layers[1]
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    parts = []
    for name, rows in (("q", 48), ("k", 16), ("v", 16)):
        weight = torch.empty(rows, 48)
        checkpoint.read(f"model.layers.1.self_attn.{name}_proj.weight", weight)
        parts.append(x @ weight.T)
    assert torch.allclose(layer.qkv(x), torch.cat(parts, 1), atol=1e-5)
    assert layer.qk_norms is None


def test_tied_embeddings_are_the_head():
    weights = load(SeededCheckpoint(TINY_LLAMA))
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(weights.head(x), x @ weights.embedding.T, atol=1e-5)
    untied = load(SeededCheckpoint(replace(TINY_LLAMA, tied_embeddings=False)))
    assert not torch.allclose(untied.head(x), x @ untied.embedding.T, atol=1e-2)


def test_qwen3_has_norms_of_query_and_key():
    norms = load(SeededCheckpoint(TINY_QWEN3)).layers[0].qk_norms
    assert norms is not None
    assert [len(norm) for norm in norms] == [16, 16]


def test_weights_are_converted():
    assert load(SeededCheckpoint(TINY_LLAMA), torch.bfloat16).embedding.dtype is torch.bfloat16


def test_stored_rope_divisors_replace_the_named_scaling():
    class Divided(SeededCheckpoint):
        def has(self, name):
            return True

        def read(self, name, out):
            out.fill_(2.0) if name == "rope_freqs" else super().read(name, out)

    plain, divided = load(SeededCheckpoint(TINY_LLAMA)), load(Divided(TINY_LLAMA))
    assert torch.equal(plain.rope_frequencies, 2 * divided.rope_frequencies)


def test_a_missing_tensor_is_the_checkpoints_fault():
    class Torn(SeededCheckpoint):
        def read(self, name, out):
            if "layers.1.mlp.up" in name:
                raise ModelUnusable(f"{name} is missing")
            super().read(name, out)

    with pytest.raises(ModelUnusable):
        load(Torn(TINY_LLAMA))
