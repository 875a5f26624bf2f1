from __future__ import annotations

import json

import pytest
import torch

from engine_shim.engine.reference.checkpoint_names import tensor_shapes
from engine_shim.engine.reference.config import config_from_hf
from engine_shim.engine.reference.seeded_checkpoint import SEED_FILE, SeededCheckpoint
from engine_shim.engine.reference.shapes import SHAPES, word_tokenizer
from router.contract.errors import ModelUnusable

NAME = "model.layers.0.self_attn.k_proj.weight"


@pytest.fixture
def folder(tmp_path):
    raw = SHAPES["seeded-qwen3-0.6b"] | {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / SEED_FILE).write_text("7")
    return tmp_path


def read(folder, name: str = NAME, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, str]:
    checkpoint = SeededCheckpoint(folder)
    out = torch.empty(tensor_shapes(checkpoint.config)[name], dtype=dtype)
    checkpoint.read(name, out)
    return out, checkpoint.digest()


def test_a_tensor_is_a_function_of_seed_and_name(folder):
    first, digest = read(folder)
    assert torch.equal(read(folder)[0], first)
    assert 0.9 < first.std() * first.shape[1] ** 0.5 / 2.0 < 1.1
    assert not torch.equal(read(folder, NAME.replace("k_proj", "v_proj"))[0], first)
    (folder / SEED_FILE).write_text("8")
    other, other_digest = read(folder)
    assert not torch.equal(other, first)
    assert other_digest != digest


def test_weights_of_another_dtype_have_another_digest(folder):
    assert read(folder)[1] != read(folder, dtype=torch.bfloat16)[1]


def test_what_is_no_tensor_of_the_shape_is_refused(folder):
    checkpoint = SeededCheckpoint(folder)
    assert checkpoint.has(NAME)
    assert not checkpoint.has("lm_head.weight")
    with pytest.raises(ModelUnusable, match="of sizes"):
        checkpoint.read(NAME, torch.empty(3, 3))
    (folder / SEED_FILE).unlink()
    with pytest.raises(ModelUnusable, match="written anew"):
        SeededCheckpoint(folder)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("0.6b", 0.60), ("1.7b", 1.72), ("4b", 4.02), ("8b", 8.19), ("14b", 14.77), ("32b", 32.76)],
)
def test_the_shapes_have_as_many_numbers_as_the_models(name, billions):
    """The parameters that each model's card tells."""
    sizes = tensor_shapes(config_from_hf(SHAPES[f"seeded-qwen3-{name}"])).values()
    assert sum(torch.Size(size).numel() for size in sizes) / 1e9 == pytest.approx(billions, abs=0.005)


def test_every_token_has_its_own_text_and_short_words_are_one_token():
    tokenizer = word_tokenizer(2000)
    ids = tokenizer.encode("the ox is on it").ids
    assert len(ids) > 5  # "the" lies beyond so small a vocabulary
    assert tokenizer.encode("ox is on it").ids == [
        tokenizer.token_to_id(f"Ġ{word}") for word in ("ox", "is", "on", "it")
    ]
    assert len({tokenizer.id_to_token(number) for number in range(2000)}) == 2000
    assert tokenizer.decode(tokenizer.encode("ox quick is").ids) == " ox quick is"
