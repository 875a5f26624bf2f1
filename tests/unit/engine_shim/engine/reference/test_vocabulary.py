from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models

from engine_shim.engine.reference.vocabulary import read_directory
from router.contract.errors import ModelUnusable


@pytest.fixture
def folder(tmp_path):
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "</s>": 2, "<eot>": 3}, unk_token="<unk>"))
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def test_a_bare_tokenizer_has_neither_eos_nor_template(folder):
    vocabulary = read_directory(folder)
    assert vocabulary.eos_token_ids == ()
    assert vocabulary.chat_templates == {}
    assert vocabulary.backend.encode("a").ids == [1]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"eos_token": "</s>"}}, (2,)),
        ({"tokenizer_config.json": {"eos_token": {"content": "<eot>"}}}, (3,)),
        ({"special_tokens_map.json": {"eos_token": "</s>"}}, (2,)),
        ({"generation_config.json": {"eos_token_id": 3}}, (3,)),
        ({"tokenizer_config.json": {"eos_token": "</s>"}, "generation_config.json": {"eos_token_id": [3, 2]}}, (2, 3)),
        ({"config.json": {"eos_token_id": 2}}, (2,)),
        ({"generation_config.json": {"eos_token_id": 3}, "config.json": {"eos_token_id": 2}}, (3,)),
        ({"generation_config.json": {"eos_token_id": None}}, ()),
        ({"tokenizer_config.json": {"eos_token": "<absent>"}}, ()),
    ],
)
def test_eos_ids_come_from_the_tokenizer_first_then_from_the_configurations(folder, files, expected):
    for name, content in files.items():
        write(folder, name, content)
    assert read_directory(folder).eos_token_ids == expected


def test_special_tokens_are_read_in_both_spellings(folder):
    write(folder, "tokenizer_config.json", {"bos_token": None, "eos_token": {"content": "</s>"}, "add_eos_token": True})
    write(folder, "special_tokens_map.json", {"unk_token": "<unk>", "additional_special_tokens": ["x"]})
    assert read_directory(folder).special_tokens == {"eos_token": "</s>", "unk_token": "<unk>"}


def test_templates_come_from_every_place_and_files_win(folder):
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert read_directory(folder).chat_templates == {"default": "one", "tool_use": "two"}
    (folder / "chat_template.jinja").write_text("three")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("four")
    assert read_directory(folder).chat_templates == {"default": "three", "tool_use": "two", "rag": "four"}
    write(folder, "tokenizer_config.json", {"chat_template": "five"})
    (folder / "chat_template.jinja").unlink()
    assert read_directory(folder).chat_templates == {"default": "five", "rag": "four"}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer.json", "{}", "is not a tokenizer"),
        ("tokenizer_config.json", "{", "is not JSON"),
        ("generation_config.json", "[1]", "must hold a JSON object"),
    ],
)
def test_damaged_files_are_unusable(folder, name, content, complaint):
    (folder / name).write_text(content)
    with pytest.raises(ModelUnusable, match=complaint):
        read_directory(folder)


def test_a_directory_without_a_tokenizer_is_unusable(tmp_path):
    with pytest.raises(ModelUnusable, match=r"has no tokenizer\.json"):
        read_directory(tmp_path)
