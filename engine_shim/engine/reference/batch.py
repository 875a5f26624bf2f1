"""Batch: the rows of one forward pass, flat, as tensors on the model's device.

A row is one token of one sequence. Rows of a sequence follow each other in order, sequences follow each other, and no
row is padding:

    sequence   A A A A | B | C | D D        A and D compute chunks of their prompts, B and C decode one token
    position   0 1 2 3 | 9 | 4 | 7 8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from router.contract.kv import BlockTable


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one sequence in one forward pass."""

    token_ids: Sequence[int]
    first_position: int
    """Position of the first row; the KV of all tokens before it is in the cache."""
    table: BlockTable | list[int]
    """Blocks of the sequence; they cover the last row."""
    num_wanted: int
    """How many of the last rows are to come out of the model, for their logits."""

    @property
    def num_rows(self) -> int:
        """Rows in the batch."""
        return len(self.token_ids)

    @property
    def end_position(self) -> int:
        """One above the last row's position: the tokens whose KV is in the cache after the pass."""
        return self.first_position + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as tensors: int64, [rows] unless said otherwise."""

    chunks: tuple[Chunk, ...]
    token_ids: torch.Tensor
    positions: torch.Tensor
    places: tuple[torch.Tensor, torch.Tensor]
    """Block id, and token within the block, that each row's KV goes to."""
    wanted: torch.Tensor | None
    """[sum of num_wanted] indices of the rows that come out; None: all of them, in order."""
    on_layer: Callable[[int], None] | None = None
    """Told by the model, where it can, how many layers have been launched whose KV is in the cache with that."""


def make_batch(chunks: Sequence[Chunk], block_tokens: int, device: torch.device) -> Batch:
    """The Batch of these chunks, in their order."""
    token_ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    wanted: list[int] = []
    for chunk in chunks:
        token_ids += chunk.token_ids
        span = range(chunk.first_position, chunk.end_position)
        positions += span
        blocks += [chunk.table[position // block_tokens] for position in span]
        wanted += range(len(token_ids) - chunk.num_wanted, len(token_ids))
    packed = torch.tensor([token_ids, positions, blocks], dtype=torch.int64).to(device, non_blocking=True)
    all_wanted = len(wanted) == len(token_ids)
    return Batch(
        tuple(chunks),
        token_ids=packed[0],
        positions=packed[1],
        places=(packed[2], packed[1] % block_tokens),
        wanted=None if all_wanted else torch.tensor(wanted, dtype=torch.int64).to(device, non_blocking=True),
    )
