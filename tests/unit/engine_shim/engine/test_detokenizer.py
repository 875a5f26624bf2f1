from __future__ import annotations

import pytest

from engine_shim.engine.detokenizer import ByteDetokenizer, WindowDetokenizer, detokenizer_of
from engine_shim.engine.reference.tokenizer import Tokenizer
from tests.support.vocabularies import SPACE, write_byte_level_gguf, write_sentencepiece_gguf


@pytest.fixture
def byte_level(tmp_path):
    tokens = write_byte_level_gguf(tmp_path / "v.gguf", merges=("a b",))
    return Tokenizer.load(tmp_path / "v.gguf"), tokens


@pytest.fixture
def sentencepiece(tmp_path):
    pieces = {SPACE: -2.0, "a": -3.0, SPACE + "a": -1.0, "b": -4.0}
    tokens = write_sentencepiece_gguf(tmp_path / "v.gguf", pieces)
    return Tokenizer.load(tmp_path / "v.gguf"), tokens


def pushed(detokenizer, ids):
    return [detokenizer.push([token_id]) for token_id in ids]


def test_the_kind_follows_the_vocabulary(byte_level, sentencepiece):
    assert isinstance(detokenizer_of(byte_level[0], skip_special_tokens=True), ByteDetokenizer)
    assert isinstance(detokenizer_of(sentencepiece[0], skip_special_tokens=True), WindowDetokenizer)


def test_a_character_appears_with_its_last_byte(byte_level):
    detokenizer = detokenizer_of(byte_level[0], skip_special_tokens=True)
    assert pushed(detokenizer, "a🎉b".encode()) == ["a", "", "", "", "🎉", "b"]
    assert detokenizer.flush() == ""


def test_bytes_that_are_no_character_appear_as_soon_as_that_is_certain(byte_level):
    detokenizer = detokenizer_of(byte_level[0], skip_special_tokens=True)
    assert pushed(detokenizer, b"\xff\xc3a\xf0\x9f") == ["\ufffd", "", "\ufffda", "", ""]
    assert detokenizer.flush() == "\ufffd"


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_skipped_when_asked(byte_level, skip):
    tokenizer, tokens = byte_level
    detokenizer = detokenizer_of(tokenizer, skip_special_tokens=skip)
    ids = [tokens.index("<s>"), tokens.index("ab"), tokens.index("<think>"), tokens.index("</s>")]
    assert detokenizer.push(ids) == ("ab<think>" if skip else "<s>ab<think></s>")


def test_a_window_drops_the_first_space_only(sentencepiece):
    tokenizer, tokens = sentencepiece
    detokenizer = detokenizer_of(tokenizer, skip_special_tokens=True)
    ids = [tokens.index(piece) for piece in ("<s>", SPACE + "a", SPACE + "a", "b", SPACE, "b")]
    assert pushed(detokenizer, ids) == ["", "a", " a", "b", " ", "b"]


def test_a_window_waits_for_a_whole_character(sentencepiece):
    tokenizer, tokens = sentencepiece
    detokenizer = detokenizer_of(tokenizer, skip_special_tokens=True)
    ids = [tokens.index(SPACE + "a")] + [tokens.index(f"<0x{byte:02X}>") for byte in "é🎉".encode()]
    assert pushed(detokenizer, ids) == ["a", "", "é", "", "", "", "🎉"]


def test_a_window_does_not_wait_for_ever(sentencepiece):
    tokenizer, tokens = sentencepiece
    detokenizer = detokenizer_of(tokenizer, skip_special_tokens=True)
    broken = tokens.index("<0xFF>")
    assert pushed(detokenizer, [broken] * 8) == [""] * 8
    assert detokenizer.push([broken]) == "\ufffd" * 9
    assert detokenizer.push([broken]) == ""
    assert detokenizer.flush() == "\ufffd"
