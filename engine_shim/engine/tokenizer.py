"""The Tokenizer port: what the shim asks of a model's vocabulary, whichever engine brings it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Encodes, decodes and renders chats; any thread may use it."""

    @property
    def is_byte_level(self) -> bool:
        """True when the text of any ids is the UTF-8 decoding of their joined `token_bytes`."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written out in the text become their ids."""

    def least_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, without encoding it; 0 where none can be given."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of these ids; bytes that are no UTF-8 become U+FFFD, ids without a token become nothing."""

    def token_text(self, token_id: int) -> str:
        """The text of one token on its own; U+FFFD stands for a part of a character, "" for an id without a token."""

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to the text, as UTF-8 bytes; a special token gives its name."""

    def is_special(self, token_id: int) -> bool:
        """True for a control token, which `skip_special_tokens` leaves out."""

    # Any: decoded JSON of the request; the template alone knows what it reads of it.
    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, object] | None,
    ) -> str:
        """A chat in the model's own format.

        Raises:
            BadRequest: the model has no chat template, or its template refuses these messages.
        """
