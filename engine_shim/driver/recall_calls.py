"""What two shims say to each other about KV that comes back: path, body, answer. The call carries the seal."""

from __future__ import annotations

import msgspec

PATH = "/kv/recall"
MAX_BODY_BYTES = 16 << 20
"""Of a prompt's token ids, some 7 bytes each."""


class Wanted(msgspec.Struct):
    """Who computes this prompt has the KV of its first `num_cached` tokens, and would take more."""

    transfer_id: str
    num_cached: int
    prompt: tuple[int, ...]


class Kept(msgspec.Struct):
    """KV of so many tokens will be written, under that id, to whoever registers; 0: of no more than is there."""

    num_tokens: int
