from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from engine_shim.engine.reference.tokenizer import Tokenizer
from engine_shim.engine.reference.vocabulary import Vocabulary
from router.contract.errors import BadRequest, ModelUnusable
from tests.support.vocabularies import SPACE, byte_chars, write_byte_level_gguf, write_sentencepiece_gguf


@pytest.fixture
def byte_level(tmp_path):
    tokens = write_byte_level_gguf(tmp_path / "v.gguf", merges=("a b",), add_bos_token=True)
    return Tokenizer.load(tmp_path / "v.gguf"), tokens


@pytest.fixture
def sentencepiece(tmp_path):
    tokens = write_sentencepiece_gguf(tmp_path / "v.gguf", {SPACE: -2.0, "a": -3.0, SPACE + "a": -1.0})
    return Tokenizer.load(tmp_path / "v.gguf"), tokens


def test_every_byte_token_gives_its_byte(byte_level):
    tokenizer, _ = byte_level
    assert b"".join(tokenizer.token_bytes(byte) for byte in range(256)) == bytes(range(256))
    assert tokenizer.is_byte_level


def test_encode_adds_special_tokens_only_when_asked(byte_level):
    tokenizer, tokens = byte_level
    ab = tokens.index("ab")
    assert tokenizer.encode("ab", add_special_tokens=True) == [tokens.index("<s>"), ab]
    assert tokenizer.encode("ab", add_special_tokens=False) == [ab]


def test_decode_skips_control_tokens_but_not_user_defined_ones(byte_level):
    tokenizer, tokens = byte_level
    ids = [tokens.index("<s>"), tokens.index("ab"), tokens.index("<think>"), tokens.index("</s>")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>ab<think></s>"
    assert [tokenizer.is_special(token_id) for token_id in ids] == [True, False, False, True]


def test_sizes_and_ends(byte_level):
    tokenizer, tokens = byte_level
    assert tokenizer.vocab_size == len(tokens) == 256 + 1 + 4
    assert tokenizer.eos_token_ids == (tokens.index("</s>"), tokens.index("<eot>"))


def test_half_a_character_and_no_token_at_all(byte_level):
    tokenizer, tokens = byte_level
    half = byte_chars().index("Ã")
    assert tokenizer.token_text(half) == "\ufffd"
    assert tokenizer.token_bytes(half) == b"\xc3"
    assert tokenizer.token_bytes(len(tokens)) == b""
    assert tokenizer.decode([len(tokens)], skip_special_tokens=False) == ""


def test_an_added_token_outside_the_byte_alphabet_stands_for_itself(byte_level):
    backend = byte_level[0]._backend
    backend.add_tokens(["<a b>", "日本"])
    tokenizer = Tokenizer(Vocabulary(backend, ()))
    for text in ("<a b>", "日本"):
        (token_id,) = tokenizer.encode(text, add_special_tokens=False)
        assert (
            tokenizer.token_bytes(token_id).decode() == text == tokenizer.decode([token_id], skip_special_tokens=True)
        )


def test_a_lower_bound_of_tokens_needs_no_encoding(byte_level, sentencepiece):
    tokenizer, _ = byte_level
    text = "<think>" * 400
    assert 0 < tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))
    assert sentencepiece[0].least_tokens(text) == 0


def test_sentencepiece_tokens_as_bytes(sentencepiece):
    tokenizer, tokens = sentencepiece
    assert not tokenizer.is_byte_level
    assert tokenizer.token_bytes(tokens.index("<0xC3>")) == b"\xc3"
    assert tokenizer.token_bytes(tokens.index(SPACE + "a")) == b" a"
    assert tokenizer.token_bytes(tokens.index("</s>")) == b"</s>"


def test_chat_goes_through_the_files_own_template_and_adds_nothing(byte_level):
    tokenizer, _ = byte_level
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "user:hi</s>"


def test_tools_choose_the_template_that_is_made_for_them():
    backend = Backend(models.WordLevel({"plain": 0, "tooled": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = Tokenizer(Vocabulary(backend, (), {}, {"default": "plain", "tool_use": "tooled"}))
    assert tokenizer.render_chat([]) == "plain"
    assert tokenizer.render_chat([], tools=[{"type": "function"}]) == "tooled"
    assert tokenizer.render_chat([], tools=[]) == "plain"


def test_a_chat_without_any_template_is_a_bad_request(sentencepiece):
    with pytest.raises(BadRequest, match="no chat template"):
        sentencepiece[0].render_chat([{"role": "user", "content": "hi"}])


def test_a_path_to_nothing_is_unusable(tmp_path):
    with pytest.raises(ModelUnusable, match="cannot be read"):
        Tokenizer.load(tmp_path / "absent.gguf")
    with pytest.raises(ModelUnusable, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
