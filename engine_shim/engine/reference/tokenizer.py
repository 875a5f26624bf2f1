"""Tokenizer: text to token ids and back, as the checkpoint's authors meant it; see `engine.tokenizer` for its port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import decoders

from engine_shim.engine.reference.chat_template import ChatTemplate
from engine_shim.engine.reference.gguf_vocabulary import read_gguf_vocabulary
from engine_shim.engine.reference.vocabulary import DEFAULT_TEMPLATE, TOOL_TEMPLATE, Vocabulary, read_directory
from router.contract.errors import BadRequest


def _byte_of_char() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 bytes are themselves, the rest follow from U+0100 in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_of_char()


class Tokenizer:
    """Encodes, decodes and renders chats. Immutable after construction; any thread may use it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Index the vocabulary: token texts, bytes and special ids by token id."""
        self._backend = vocabulary.backend
        self.eos_token_ids = vocabulary.eos_token_ids
        self.special_tokens = vocabulary.special_tokens
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        ids = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(ids.values(), default=-1) + 1
        """One above the highest token id."""
        self._longest_token_chars = max(map(len, ids), default=1)
        self.is_byte_level = isinstance(self._backend.decoder, decoders.ByteLevel)
        """See the port."""
        self._templates = {
            name: ChatTemplate(source, vocabulary.special_tokens) for name, source in vocabulary.chat_templates.items()
        }

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer of a Hugging Face directory or a `.gguf` file.

        Raises:
            ModelUnusable: the path holds neither, or a tokenizer that this engine cannot rebuild.
        """
        return cls(read_directory(path) if path.is_dir() else read_gguf_vocabulary(path))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See the port."""
        # As a batch of one, since `encode` also finds where each token stands in the text: a quarter of its time.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def least_tokens(self, text: str) -> int:
        """See the port."""
        # Unicode's canonical composition, which a normalizer may apply, joins at most four characters to one.
        return len(text) // (4 * self._longest_token_chars) if self.is_byte_level else 0

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """See the port."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """See the port."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See the port."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.is_byte_level:
            return _bytes_of(token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()

    def is_special(self, token_id: int) -> bool:
        """See the port."""
        return token_id in self._special_ids

    # Any: decoded JSON of the request; the template alone knows what it reads of it.
    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """A chat in the checkpoint's own format; the template writes BOS itself where the model wants one.

        Raises:
            BadRequest: the model has no chat template, or its template refuses these messages.
        """
        return self._template(tools).render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )

    # Any: see render_chat.
    def _template(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatTemplate:
        name = TOOL_TEMPLATE if tools and TOOL_TEMPLATE in self._templates else DEFAULT_TEMPLATE
        if name not in self._templates:
            raise BadRequest("This model has no chat template; use /v1/completions.", param="messages")
        return self._templates[name]


def _bytes_of(token: str) -> bytes:
    """A byte-level token's bytes; a token with any other character stands for itself, as its decoder has it."""
    try:
        return bytes([_BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode()
