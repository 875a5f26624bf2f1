from __future__ import annotations

import pytest

from engine_shim.engine.port import FinishReason, Purpose
from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.ending import Ending, ending_of
from engine_shim.engine.reference.sequence import Sequence
from engine_shim.engine.reference.text_stream import TextStream
from tests.support.tiny_models import ask, tiny_tokenizer

EOS = (9,)
LENGTH = Ending(FinishReason.LENGTH)


def ending(*output, max_context_tokens=100, purpose=Purpose.GENERATE, **sampling):
    request = ask("a", (1, 2, 3), purpose=purpose, **{"ignore_eos": False} | sampling)
    sequence = Sequence(request, 0, BlockNames(4), TextStream(tiny_tokenizer(), request.sampling))
    for token_id in output:
        sequence.append(token_id)
    return ending_of(sequence, EOS, max_context_tokens)


def test_a_sequence_goes_on_until_something_ends_it():
    assert ending(5, 6) is None
    assert ending(5, 6, max_tokens=2) == LENGTH
    assert ending(5, 6, max_context_tokens=5) == LENGTH
    assert ending(5, 6, max_context_tokens=6) is None
    assert ending(5, purpose=Purpose.HOLD) == LENGTH


def test_eos_and_stop_tokens_end_it_and_are_no_text():
    assert ending(5, 9) == Ending(FinishReason.STOP, by_token=True)
    assert ending(5, 9, ignore_eos=True) is None
    assert ending(5, 6, stop_token_ids=(6,)) == Ending(FinishReason.STOP, 6, by_token=True)
    assert ending(9, stop_token_ids=(9,)) == Ending(FinishReason.STOP, 9, by_token=True)
    assert ending(9, max_tokens=1) == Ending(FinishReason.STOP, by_token=True)


@pytest.mark.parametrize("token_id", [9, 6])
def test_nothing_stops_before_min_tokens(token_id):
    assert ending(5, token_id, stop_token_ids=(6,), min_tokens=3) is None
    assert ending(5, 5, token_id, stop_token_ids=(6,), min_tokens=3) is not None
