from __future__ import annotations

import gguf
import pytest

from engine_shim.engine.reference.gguf_vocabulary import read_gguf_vocabulary
from router.contract.errors import ModelUnusable
from tests.support.vocabularies import SPACE, write_byte_level_gguf, write_sentencepiece_gguf

MERGES = ("1 2", "12 3", "a b", "Ġ a", "Ġ 1", "Ġ Ġ")


def pieces(backend, text):
    return backend.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["ab", "Ġ", "Ġ1", "2", "3", "4"]),
        ("default", ["ab", "Ġ", "Ġ1", "2", "3", "4"]),
        ("smollm", ["ab", "ĠĠ", "1", "2", "3", "4"]),
        ("qwen2", ["ab", "Ġ", "Ġ", "1", "2", "3", "4"]),
        ("llama-bpe", ["ab", "Ġ", "Ġ", "123", "4"]),
    ],
)
def test_each_pre_tokenizer_splits_digits_its_own_way(tmp_path, pre, expected):
    # GPT-2 keeps one space with the number, and the merge `Ġ 1` ranks after `1 2`, so give it no chance of that first.
    merges = MERGES if pre == "llama-bpe" else MERGES[2:]
    write_byte_level_gguf(tmp_path / "v.gguf", pre=pre, merges=merges)
    assert pieces(read_gguf_vocabulary(tmp_path / "v.gguf").backend, "ab  1234") == expected


def test_kinds_of_tokens_become_special_and_plain_added_tokens(tmp_path):
    tokens = write_byte_level_gguf(tmp_path / "v.gguf")
    vocabulary = read_gguf_vocabulary(tmp_path / "v.gguf")
    added = {token.content: token.special for token in vocabulary.backend.get_added_tokens_decoder().values()}
    assert added == {"<s>": True, "</s>": True, "<eot>": True, "<think>": False}
    assert pieces(vocabulary.backend, "a<think></s>") == ["a", "<think>", "</s>"]
    assert vocabulary.eos_token_ids == (tokens.index("</s>"), tokens.index("<eot>"))
    assert vocabulary.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert list(vocabulary.chat_templates) == ["default"]


@pytest.mark.parametrize(
    ("pre", "flags", "expected"),
    [
        ("gpt-2", {}, ["a"]),
        ("gpt-2", {"add_bos_token": True}, ["<s>", "a"]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, ["<s>", "a", "</s>"]),
        ("llama-bpe", {}, ["<s>", "a"]),
        ("llama-bpe", {"add_bos_token": False}, ["a"]),
    ],
)
def test_special_tokens_frame_a_text_as_the_file_asks(tmp_path, pre, flags, expected):
    write_byte_level_gguf(tmp_path / "v.gguf", pre=pre, **flags)
    assert read_gguf_vocabulary(tmp_path / "v.gguf").backend.encode("a").tokens == expected


def test_qwen2_normalises_to_composed_characters(tmp_path):
    write_byte_level_gguf(tmp_path / "v.gguf", pre="qwen2")
    backend = read_gguf_vocabulary(tmp_path / "v.gguf").backend
    assert backend.encode("e\u0301").ids == backend.encode("\u00e9").ids


PIECES = {SPACE: -9.0, "a": -8.0, "b": -8.5, "c": -8.6, SPACE + "a": -1.0, "ab": -0.5, "bc": -0.2, SPACE + "ab": -3.0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab", [SPACE + "ab"]),
        # `bc` has the best score of all joins, so it is merged before `ab` and `▁a`.
        ("abc", [SPACE + "a", "bc"]),
        ("a b", [SPACE + "a", SPACE, "b"]),
        ("é", [SPACE, "<0xC3>", "<0xA9>"]),
    ],
)
def test_sentencepiece_merges_the_best_score_first(tmp_path, text, expected):
    write_sentencepiece_gguf(tmp_path / "v.gguf", PIECES)
    backend = read_gguf_vocabulary(tmp_path / "v.gguf").backend
    assert pieces(backend, text) == expected
    assert backend.encode(text).tokens == ["<s>", *expected]
    assert backend.decode(backend.encode(text).ids) == text


def test_sentencepiece_without_a_space_prefix(tmp_path):
    write_sentencepiece_gguf(tmp_path / "v.gguf", PIECES, add_space_prefix=False, add_bos_token=False)
    backend = read_gguf_vocabulary(tmp_path / "v.gguf").backend
    assert backend.encode("a a").tokens == ["a", SPACE + "a"]
    assert backend.decode(backend.encode(" a").ids) == " a"


def test_an_unknown_pre_tokenizer_is_unusable(tmp_path):
    write_byte_level_gguf(tmp_path / "v.gguf", pre="viking")
    with pytest.raises(ModelUnusable, match="pre-tokenizer 'viking'"):
        read_gguf_vocabulary(tmp_path / "v.gguf")


@pytest.mark.parametrize(("model", "complaint"), [("bert", "'bert' tokenizer"), (None, "carries no tokenizer")])
def test_an_unknown_or_absent_model_is_unusable(tmp_path, model, complaint):
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    if model:
        writer.add_tokenizer_model(model)
        writer.add_token_list(["a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelUnusable, match=complaint):
        read_gguf_vocabulary(tmp_path / "v.gguf")


def test_merges_that_contradict_the_tokens_are_unusable(tmp_path):
    write_byte_level_gguf(tmp_path / "v.gguf", merges=("a b",))
    path = tmp_path / "v.gguf"
    length = (3).to_bytes(8, "little")
    path.write_bytes(path.read_bytes().replace(length + b"a b", length + b"a c"))
    with pytest.raises(ModelUnusable, match="broken tokenizer"):
        read_gguf_vocabulary(path)


def test_no_merges_is_unusable(tmp_path):
    write_sentencepiece_gguf(tmp_path / "v.gguf", {"a": 0.0})
    with pytest.raises(ModelUnusable, match="no merges"):
        read_gguf_vocabulary(tmp_path / "v.gguf")
