from __future__ import annotations

from engine_shim.engine.port import Purpose, TokenLogprob
from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.sequence import Sequence, State
from engine_shim.engine.reference.text_stream import TextStream
from tests.support.tiny_models import ask, tiny_tokenizer


def sequence(**request) -> Sequence:
    given = ask("a", (5, 6, 7), **request)
    return Sequence(given, 1, BlockNames(4), TextStream(tiny_tokenizer(), given.sampling))


def test_progress_is_counted_in_tokens():
    made = sequence()
    assert (made.state, made.num_prompt_tokens, made.num_output_tokens, made.num_missing) == (State.WAITING, 3, 0, 3)
    made.num_computed = 3
    made.append(9)
    made.append(9)
    assert (made.num_output_tokens, made.num_missing, made.output_counts) == (2, 2, {9: 2})


def test_a_sequence_receives_once():
    made = sequence(purpose=Purpose.RECEIVE)
    assert made.is_receiving
    made.num_cached_tokens = 2
    assert not made.is_receiving
    assert not sequence().is_receiving


def test_prompt_log_probabilities_are_wanted_until_complete():
    assert not sequence().wants_prompt_logprobs
    made = sequence(prompt_logprobs=0)
    assert made.prompt_logprobs == [None]
    made.prompt_logprobs += [TokenLogprob(6, -1.0)]
    assert made.wants_prompt_logprobs
    made.prompt_logprobs += [TokenLogprob(7, -1.0)]
    assert not made.wants_prompt_logprobs
