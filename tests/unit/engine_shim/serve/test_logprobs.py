from __future__ import annotations

import math

from engine_shim.engine.detokenizer import detokenizer_of
from engine_shim.engine.port import TokenLogprob
from engine_shim.serve.logprobs import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    CompletionLogprobsWriter,
    PromptLogprob,
    TopLogprob,
    chat_logprobs,
    joined,
    prompt_logprobs,
)


def writer_of(tokenizer):
    return CompletionLogprobsWriter(tokenizer, detokenizer_of(tokenizer, skip_special_tokens=True))


def test_chat_shape_with_bytes_of_half_a_character(tokenizer):
    position = TokenLogprob(0xC3, -0.5, ((65, -0.25), (0xC3, -0.5)))
    assert chat_logprobs(tokenizer, [position]) == ChatLogprobs(
        [ChatTokenLogprob("\ufffd", -0.5, [0xC3], [TopLogprob("A", -0.25, [65]), TopLogprob("\ufffd", -0.5, [0xC3])])]
    )


def test_minus_infinity_becomes_a_number(tokenizer):
    position = TokenLogprob(66, -math.inf, ((65, -math.inf),))
    shaped = chat_logprobs(tokenizer, [position]).content[0]
    assert (shaped.logprob, shaped.top_logprobs[0].logprob) == (-9999.0, -9999.0)
    piece = writer_of(tokenizer).write([66], [position])
    assert piece.token_logprobs == [-9999.0]
    assert piece.top_logprobs == [{"A": -9999.0, "B": -9999.0}]
    assert prompt_logprobs(tokenizer, [position])[0]["66"].logprob == -9999.0


def test_completion_offsets_count_characters_of_the_text(tokenizer):
    ids = [*"é!".encode(), tokenizer.eos_token_ids[0], 65]
    positions = [TokenLogprob(token_id, -1.0) for token_id in ids]
    writer = writer_of(tokenizer)
    piece = writer.write(ids[:2], positions[:2])
    # Both halves of the character begin where it begins; a special token adds nothing to the text.
    assert piece.text_offset == [0, 0]
    assert writer.write(ids[2:], positions[2:]).text_offset == [1, 2, 2]


def test_completion_top_has_the_chosen_token_too_and_the_likelier_of_two_alike(tokenizer):
    position = TokenLogprob(0xC3, -3.0, ((65, -0.5), (0xC4, -1.0)))
    assert writer_of(tokenizer).write([0xC3], [position]).top_logprobs == [{"A": -0.5, "\ufffd": -1.0}]


def test_a_position_without_a_distribution_is_null(tokenizer):
    piece = writer_of(tokenizer).write([65, 66], [None, TokenLogprob(66, -1.0)])
    assert piece == CompletionLogprobs([0, 1], [None, -1.0], ["A", "B"], [None, {"B": -1.0}])


def test_pieces_join_in_order():
    one = CompletionLogprobs([0], [-1.0], ["a"], [None])
    two = CompletionLogprobs([1], [-2.0], ["b"], [{}])
    assert joined(one, two) == CompletionLogprobs([0, 1], [-1.0, -2.0], ["a", "b"], [None, {}])


def test_prompt_positions_are_keyed_by_token_id_and_ranked(tokenizer):
    positions = [None, TokenLogprob(67, -3.0, ((65, -0.5), (66, -1.0))), TokenLogprob(65, -0.5, ((65, -0.5),))]
    assert prompt_logprobs(tokenizer, positions) == [
        None,
        {
            "65": PromptLogprob(-0.5, 1, "A"),
            "66": PromptLogprob(-1.0, 2, "B"),
            "67": PromptLogprob(-3.0, None, "C"),
        },
        {"65": PromptLogprob(-0.5, 1, "A")},
    ]
