from __future__ import annotations

import pytest

from engine_shim.engine.port import SamplingParams
from engine_shim.engine.reference.text_stream import TextDelta, TextStream
from engine_shim.engine.reference.tokenizer import Tokenizer
from tests.support.vocabularies import write_byte_level_gguf


@pytest.fixture
def stream_of(tmp_path):
    write_byte_level_gguf(tmp_path / "v.gguf")
    tokenizer = Tokenizer.load(tmp_path / "v.gguf")
    return lambda **sampling: TextStream(tokenizer, SamplingParams(max_tokens=99, **sampling))


def push(stream, text, *, may_stop=True, finished=False):
    """One byte token per byte of `text`."""
    return stream.push(list(text.encode()), may_stop=may_stop, finished=finished)


def test_without_stop_strings_text_comes_at_once(stream_of):
    stream = stream_of()
    assert push(stream, "ab") == TextDelta("ab")
    assert push(stream, "", finished=True) == TextDelta("")


def test_half_a_character_is_withheld_until_it_is_whole_or_the_end(stream_of):
    stream = stream_of()
    assert stream.push([0xC3], may_stop=True, finished=False) == TextDelta("")
    assert stream.push([0xA9, 0xE2], may_stop=True, finished=False) == TextDelta("é")
    assert stream.push([0x82], may_stop=True, finished=True) == TextDelta("\ufffd")


def test_a_stop_string_over_several_pushes_is_cut(stream_of):
    stream = stream_of(stop=("END",))
    assert push(stream, "one E") == TextDelta("one ")
    assert push(stream, "N") == TextDelta("")
    assert push(stream, "D more") == TextDelta("", "END")


def test_what_only_began_like_a_stop_string_comes_out(stream_of):
    stream = stream_of(stop=("END",))
    assert push(stream, "EN") == TextDelta("")
    assert push(stream, "E") == TextDelta("EN")
    assert push(stream, "", finished=True) == TextDelta("E")


def test_the_stop_string_is_kept_when_asked(stream_of):
    stream = stream_of(stop=("END",), include_stop_str_in_output=True)
    assert push(stream, "one EN") == TextDelta("one ")
    assert push(stream, "D more") == TextDelta("END", "END")


def test_below_min_tokens_a_stop_string_is_plain_text(stream_of):
    stream = stream_of(stop=("b",))
    assert push(stream, "abc", may_stop=False) == TextDelta("abc")
    assert push(stream, "ab") == TextDelta("a", "b")


def test_a_stop_string_that_begins_below_min_tokens_and_ends_above_counts(stream_of):
    stream = stream_of(stop=("bc",))
    assert push(stream, "ab", may_stop=False) == TextDelta("a")
    assert push(stream, "c") == TextDelta("", "bc")


def test_the_end_may_complete_a_stop_string(stream_of):
    stream = stream_of(stop=("\ufffd",))
    assert stream.push([0x61, 0xC3], may_stop=True, finished=True) == TextDelta("a", "\ufffd")
