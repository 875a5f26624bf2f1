from __future__ import annotations

import pytest
import torch

from engine_shim.engine.reference.opening import device_of, open_engine
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings
from router.contract.errors import ModelUnusable
from tests.support.tiny_models import ask, generate, prompt_of, tiny_engine, write_tiny_llama


@pytest.fixture
def directory(tmp_path):
    write_tiny_llama(tmp_path)
    return tmp_path


def test_a_directory_becomes_an_engine(directory):
    settings = ReferenceSettings(str(directory), num_blocks=64, num_threads=1, numerics=Numerics.INVARIANT)
    engine = open_engine(settings)
    assert torch.get_num_threads() == 1
    assert engine.card.name == directory.name
    prompt = prompt_of(40)
    assert generate(engine, ask("a", prompt)) == generate(tiny_engine(), ask("a", prompt))
    assert open_engine(settings).card.weights_digest == engine.card.weights_digest


@pytest.mark.parametrize(
    ("device", "num_gpus", "own"), [("cuda", 0, 0), ("cuda:2", 0, 2), ("cuda", 3, 0), ("cuda:1", 2, 1)]
)
def test_an_engine_is_on_the_first_of_its_gpus(monkeypatch, device, num_gpus, own):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    settings = ReferenceSettings("m", device=device, num_ranks=4, num_gpus=num_gpus)
    assert device_of(settings) == torch.device("cuda", own)


@pytest.mark.parametrize(("device", "num_gpus"), [("cuda:3", 0), ("cuda", 4), ("cuda:2", 2)])
def test_gpus_that_are_not_there_are_refused(monkeypatch, device, num_gpus):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ModelUnusable, match=r"from number \d on were asked for, and torch finds 3.*--devices"):
        device_of(ReferenceSettings("m", device=device, num_ranks=4, num_gpus=num_gpus))


def test_what_cannot_be_opened_is_said_in_one_sentence(directory, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for settings in (ReferenceSettings("absent"), ReferenceSettings(str(directory), device="cuda")):
        with pytest.raises(ModelUnusable) as caught:
            open_engine(settings)
        assert caught.value.message.endswith(".")
    (directory / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelUnusable):
        open_engine(ReferenceSettings(str(directory)))
