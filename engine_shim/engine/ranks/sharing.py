"""Who computes which sequence of a batch, and results back in the batch's order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_shim.engine.reference.batch import Chunk


def share_chunks(chunks: Sequence[Chunk], num_parts: int) -> list[int]:
    """The part of each chunk: in order, the one with the fewest rows so far."""
    rows = [0] * num_parts
    owners = []
    for chunk in chunks:
        owner = rows.index(min(rows))
        rows[owner] += chunk.num_rows
        owners.append(owner)
    return owners


def parts_of(chunks: Sequence[Chunk], owners: Sequence[int], num_parts: int) -> list[tuple[Chunk, ...]]:
    """The chunks of each part, in order."""
    return [
        tuple(chunk for chunk, owner in zip(chunks, owners, strict=True) if owner == part) for part in range(num_parts)
    ]


def in_order(hidden: Sequence[torch.Tensor], parts: Sequence[Sequence[Chunk]], owners: Sequence[int]) -> torch.Tensor:
    """[wanted, hidden] in the order of all chunks, from each part's wanted rows in the order of its own."""
    pieces = [
        iter(torch.split(rows, [chunk.num_wanted for chunk in part])) for rows, part in zip(hidden, parts, strict=True)
    ]
    return torch.cat([next(pieces[owner]) for owner in owners]) if owners else hidden[0]
