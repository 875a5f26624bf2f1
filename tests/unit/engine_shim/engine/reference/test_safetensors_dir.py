from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from engine_shim.engine.reference.safetensors_dir import SafetensorsCheckpoint
from router.contract.errors import ModelUnusable
from tests.support.tiny_models import LLAMA_JSON

TENSORS = {"model.norm.weight": torch.arange(64.0), "lm_head.weight": torch.arange(128.0).view(2, 64).bfloat16()}


@pytest.fixture
def single(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_JSON))
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_JSON))
    weight_map = {}
    for index, (name, tensor) in enumerate(TENSORS.items()):
        weight_map[name] = f"model-{index}.safetensors"
        save_file({name: tensor}, folder / weight_map[name])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def read(checkpoint, name):
    out = torch.empty(TENSORS[name].shape)
    checkpoint.read(name, out)
    return out


def test_one_file_and_shards_give_the_same_tensors_and_digest(single, sharded):
    digests = []
    for folder in (single, sharded):
        checkpoint = SafetensorsCheckpoint(folder)
        assert checkpoint.config.hidden_size == 64
        assert checkpoint.has("lm_head.weight")
        assert not checkpoint.has("rope_freqs")
        for name, tensor in TENSORS.items():
            assert torch.equal(read(checkpoint, name), tensor.float())
        digests.append(checkpoint.digest())
    assert digests[0] == digests[1]


def test_other_bytes_have_another_digest(single):
    before = SafetensorsCheckpoint(single)
    read(before, "model.norm.weight")
    save_file({"model.norm.weight": torch.arange(64.0) + 1}, single / "model.safetensors")
    after = SafetensorsCheckpoint(single)
    read(after, "model.norm.weight")
    assert before.digest() != after.digest()


def test_what_cannot_be_used_is_refused(single, sharded):
    checkpoint = SafetensorsCheckpoint(single)
    for name, sizes in (("absent", (1,)), ("model.norm.weight", (63,))):
        with pytest.raises(ModelUnusable):
            checkpoint.read(name, torch.empty(sizes))
    (sharded / "model-0.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelUnusable):
        read(SafetensorsCheckpoint(sharded), "model.norm.weight")
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelUnusable):
        SafetensorsCheckpoint(sharded)
    (single / "model.safetensors").unlink()
    with pytest.raises(ModelUnusable):
        SafetensorsCheckpoint(single)
    for text in ("[]", "{", None):
        path = single / "config.json"
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(ModelUnusable):
            SafetensorsCheckpoint(single)
