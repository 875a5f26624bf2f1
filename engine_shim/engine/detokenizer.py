"""Token ids to text, a few tokens at a time, never showing half a character.

A byte-level vocabulary needs no more than a UTF-8 decoder that waits for the rest of a character: O(1) per token, and
the pieces join to exactly the text of all ids. Other vocabularies decode by rules that look at neighbouring tokens
(a leading space is dropped, bytes are joined), so their text is the difference of two decodings of a short window.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from engine_shim.engine.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_WITHHELD_TOKENS = 8
"""A character is at most 4 byte tokens; more than this ending in U+FFFD is no character that is still to come."""


class Detokenizer(Protocol):
    """Turns ids into text as they come."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete."""

    def flush(self) -> str:
        """What is still withheld; an unfinished character is U+FFFD. Nothing may be pushed afterwards."""


def detokenizer_of(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Detokenizer:
    """The Detokenizer that suits this vocabulary."""
    kind = ByteDetokenizer if tokenizer.is_byte_level else WindowDetokenizer
    return kind(tokenizer, skip_special_tokens=skip_special_tokens)


class ByteDetokenizer:
    """For byte-level vocabularies: pieces join to exactly `Tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        """Start with no text."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        tokenizer = self._tokenizer
        if self._skip_special_tokens:
            token_ids = [token_id for token_id in token_ids if not tokenizer.is_special(token_id)]
        return self._utf8.decode(b"".join(map(tokenizer.token_bytes, token_ids)))

    def flush(self) -> str:
        """What is still withheld, as U+FFFD."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For all other vocabularies; bytes that are no UTF-8 may show as another number of U+FFFD than in one decoding.

    window = ids[begin:], of which the text of ids[begin:shown] has been given out; begin trails by one piece.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        """Start with no text."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        self._num_shown_tokens = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        return "".join(self._push_one(token_id) for token_id in token_ids)

    def flush(self) -> str:
        """What is still withheld."""
        return self._fresh_text()

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        fresh = self._fresh_text()
        withheld = len(self._window) - self._num_shown_tokens
        if not fresh or (fresh.endswith(_REPLACEMENT) and withheld <= _MAX_WITHHELD_TOKENS):
            return ""
        del self._window[: self._num_shown_tokens]
        self._num_shown_tokens = len(self._window)
        return fresh

    def _fresh_text(self) -> str:
        shown = self._decode(self._window[: self._num_shown_tokens])
        return self._decode(self._window)[len(shown) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)
