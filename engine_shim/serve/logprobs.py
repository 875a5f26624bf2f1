"""Log probabilities in the shapes of the two endpoints, and of vLLM's `prompt_logprobs`.

JSON has no minus infinity: a token that cannot be drawn has FLOOR, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine_shim.engine.detokenizer import Detokenizer
from engine_shim.engine.port import TokenLogprob
from engine_shim.engine.tokenizer import Tokenizer

FLOOR = -9999.0


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens, in the chat shape."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """The chosen token, in the chat shape."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """`choices[].logprobs` of a chat."""

    content: list[ChatTokenLogprob]


class CompletionLogprobs(msgspec.Struct):
    """`choices[].logprobs` of a completion: four lists of one entry a token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct):
    """One token of one position, in vLLM's shape; `rank` is None for a token that is not among the likeliest."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


def chat_logprobs(tokenizer: Tokenizer, positions: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Positions in the chat shape."""
    return ChatLogprobs([_chat_position(tokenizer, position) for position in positions])


def _chat_position(tokenizer: Tokenizer, position: TokenLogprob) -> ChatTokenLogprob:
    tops = [
        TopLogprob(tokenizer.token_text(token_id), max(logprob, FLOOR), list(tokenizer.token_bytes(token_id)))
        for token_id, logprob in position.top
    ]
    token_id = position.token_id
    chosen = max(position.logprob, FLOOR)
    return ChatTokenLogprob(tokenizer.token_text(token_id), chosen, list(tokenizer.token_bytes(token_id)), tops)


class CompletionLogprobsWriter:
    """Completion logprobs of one choice, piece by piece: offsets count the characters of the text before a token."""

    def __init__(self, tokenizer: Tokenizer, detokenizer: Detokenizer) -> None:
        """Begin at offset 0; `detokenizer` is this choice's own and sees every token once."""
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._offset = 0

    def skip(self, token_ids: Sequence[int]) -> None:
        """Move past tokens whose log probabilities are not wanted."""
        self._offset += len(self._detokenizer.push(token_ids))

    def write(self, token_ids: Sequence[int], positions: Sequence[TokenLogprob | None]) -> CompletionLogprobs:
        """The next tokens; None stands for a position that has no distribution (a prompt's first token)."""
        piece = CompletionLogprobs([], [], [], [])
        for token_id, position in zip(token_ids, positions, strict=True):
            piece.text_offset.append(self._offset)
            piece.tokens.append(self._tokenizer.token_text(token_id))
            piece.token_logprobs.append(None if position is None else max(position.logprob, FLOOR))
            piece.top_logprobs.append(None if position is None else self._top(position))
            self.skip((token_id,))
        return piece

    def _top(self, position: TokenLogprob) -> dict[str, float]:
        """The likeliest and the chosen token; of two tokens that read the same the likelier one stays."""
        top: dict[str, float] = {}
        for token_id, logprob in (*position.top, (position.token_id, position.logprob)):
            top.setdefault(self._tokenizer.token_text(token_id), max(logprob, FLOOR))
        return top


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Two pieces as one."""
    return CompletionLogprobs(
        first.text_offset + second.text_offset,
        first.token_logprobs + second.token_logprobs,
        first.tokens + second.tokens,
        first.top_logprobs + second.top_logprobs,
    )


def prompt_logprobs(tokenizer: Tokenizer, positions: Sequence[TokenLogprob | None]) -> PromptLogprobs:
    """Positions of a prompt in vLLM's shape, keyed by token id."""
    return [None if position is None else _prompt_position(tokenizer, position) for position in positions]


def _prompt_position(tokenizer: Tokenizer, position: TokenLogprob) -> dict[str, PromptLogprob]:
    shaped = {
        str(token_id): PromptLogprob(max(logprob, FLOOR), rank, tokenizer.token_text(token_id))
        for rank, (token_id, logprob) in enumerate(position.top, start=1)
    }
    chosen = PromptLogprob(max(position.logprob, FLOOR), None, tokenizer.token_text(position.token_id))
    shaped.setdefault(str(position.token_id), chosen)
    return shaped
