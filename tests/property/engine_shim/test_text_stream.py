"""Every cut of a token sequence gives the same text, and a stop string cuts where a search of the whole text says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.engine.port import SamplingParams
from engine_shim.engine.reference.text_stream import TextStream
from engine_shim.engine.reference.tokenizer import Tokenizer
from tests.support.vocabularies import SPACE, write_byte_level_gguf, write_sentencepiece_gguf

MERGES = ("a b", "Ġ a", "ð Ł", "Ã ©", "â Ĥ")
NUM_TOKENS = 256 + len(MERGES) + 4
LIKELY = [*b"ab \xc3\xa9\xf0\x9f\x8e\x89\xe2\x82\xac\xff", *range(256, NUM_TOKENS)]
token_ids = st.one_of(st.sampled_from(LIKELY), st.integers(0, NUM_TOKENS - 1))
pushes = st.lists(st.lists(token_ids, max_size=4), max_size=20)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.gguf"
    write_byte_level_gguf(path, merges=MERGES)
    return Tokenizer.load(path)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.gguf"
    write_sentencepiece_gguf(path, {SPACE: -2.0, "a": -3.0, "b": -4.0, SPACE + "a": -1.0, "ab": -1.5})
    return Tokenizer.load(path)


def streamed(tokenizer, pushes, sampling):
    stream = TextStream(tokenizer, sampling)
    text = ""
    for index, ids in enumerate([*pushes, []]):
        delta = stream.push(ids, may_stop=True, finished=index == len(pushes))
        text += delta.text
        if delta.stop is not None:
            return text, delta.stop
    return text, None


@settings(deadline=None, max_examples=200)
@given(pushes=pushes, skip=st.booleans())
def test_deltas_join_to_the_decoding_of_all_ids(byte_level, pushes, skip):
    sampling = SamplingParams(max_tokens=1, skip_special_tokens=skip)
    whole = byte_level.decode([each for ids in pushes for each in ids], skip_special_tokens=skip)
    assert streamed(byte_level, pushes, sampling) == (whole, None)


@settings(deadline=None, max_examples=200)
@given(
    pushes=pushes,
    stops=st.lists(st.text("ab é\ufffd🎉<", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_the_first_stop_string_of_the_whole_text_cuts_it(byte_level, pushes, stops, include):
    sampling = SamplingParams(max_tokens=1, stop=tuple(stops), include_stop_str_in_output=include)
    whole = byte_level.decode([each for ids in pushes for each in ids], skip_special_tokens=True)
    ends = [(whole.find(stop) + len(stop), rank, stop) for rank, stop in enumerate(stops) if stop in whole]
    if not ends:
        assert streamed(byte_level, pushes, sampling) == (whole, None)
        return
    end, _, stop = min(ends)
    assert streamed(byte_level, pushes, sampling) == (whole[: end if include else end - len(stop)], stop)


@settings(deadline=None, max_examples=200)
@given(text=st.text("ab é🎉漢\n", max_size=40), cuts=st.lists(st.integers(1, 3), max_size=60))
def test_any_text_survives_a_sentencepiece_vocabulary(sentencepiece, text, cuts):
    ids = sentencepiece.encode(text, add_special_tokens=True)
    pushes = []
    for cut in cuts:
        pushes.append(ids[:cut])
        ids = ids[cut:]
    assert streamed(sentencepiece, [*pushes, ids], SamplingParams(max_tokens=1)) == (text, None)
