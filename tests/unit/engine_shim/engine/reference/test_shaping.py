from __future__ import annotations

import pytest
import torch

from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.sequence import Sequence
from engine_shim.engine.reference.shaping import is_shaped, shape_
from engine_shim.engine.reference.text_stream import TextStream
from tests.support.tiny_models import ask, tiny_tokenizer

EOS = (7,)
LOGITS = [4.0, -4.0, 2.0, -2.0, 1.0, 0.0, 3.0, 5.0]


def shaped(prompt=(0, 1), output=(), **sampling):
    request = ask("a", prompt, **{"ignore_eos": False} | sampling)
    sequence = Sequence(request, 0, BlockNames(4), TextStream(tiny_tokenizer(), request.sampling))
    for token_id in output:
        sequence.append(token_id)
    row = torch.tensor(LOGITS)
    assert is_shaped(sequence) == bool(sampling.keys() - {"ignore_eos", "stop_token_ids"})
    if is_shaped(sequence):
        shape_(row, sequence, EOS)
    return row.tolist()


def changed(**by_token):
    return pytest.approx([by_token.get(f"t{index}", value) for index, value in enumerate(LOGITS)])


def test_nothing_asked_nothing_changed():
    assert shaped(output=(2, 2)) == LOGITS


def test_biases_are_added():
    assert shaped(logit_bias=((3, 1.5), (0, -100.0))) == changed(t3=-0.5, t0=-96.0)


def test_ends_are_masked_before_min_tokens():
    infinite = -float("inf")
    assert shaped(min_tokens=2, output=(5,), stop_token_ids=(6,)) == changed(t6=infinite, t7=infinite)
    assert shaped(min_tokens=2, output=(5,), stop_token_ids=(6,), ignore_eos=True) == changed(t6=infinite)


def test_ends_are_free_from_min_tokens_on():
    request = ask("a", (0,), min_tokens=1)
    sequence = Sequence(request, 0, BlockNames(4), TextStream(tiny_tokenizer(), request.sampling))
    sequence.append(5)
    assert not is_shaped(sequence)


def test_presence_and_frequency_count_the_output_alone():
    assert shaped(output=(2, 2, 3), presence_penalty=0.5) == changed(t2=1.5, t3=-2.5)
    assert shaped(output=(2, 2, 3), frequency_penalty=0.5) == changed(t2=1.0, t3=-2.5)
    assert shaped(presence_penalty=0.5, frequency_penalty=1.0) == LOGITS


def test_repetition_divides_what_is_likely_and_multiplies_what_is_not_in_prompt_and_output():
    assert shaped(output=(3, 6), repetition_penalty=2.0) == changed(t0=2.0, t1=-8.0, t3=-4.0, t6=1.5)
