"""Names of full blocks for the prefix cache: each digests its own tokens and the name before it.

A name therefore stands for all tokens from the first one on. blake2b makes two prefixes of one name as good as
impossible, because a collision would answer a request from another one's context.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


class BlockNames:
    """The names of one sequence's full blocks, extended as its tokens grow."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._names: list[bytes] = []

    def up_to(self, tokens: Sequence[int], num_blocks: int) -> list[bytes]:
        """Names of the first `num_blocks` blocks, all of them full; `tokens` begins as in earlier calls."""
        for index in range(len(self._names), num_blocks):
            begin = index * self._block_tokens
            content = array("q", tokens[begin : begin + self._block_tokens]).tobytes()
            parent = self._names[-1] if self._names else b""
            self._names.append(hashlib.blake2b(parent + content, digest_size=16).digest())
        return self._names[:num_blocks]
