"""Does this machine keep the promise of invariant numerics? Asked once, when an engine starts.

The kernels underneath belong to others. So two sequences are computed twice, once whole and alone, once in pieces and
in company, and every bit must be the same.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from router.contract.errors import BadSettings
from router.contract.kv import KVLayout

LENGTHS = (70, 150)
"""Tokens of the two sequences: one and two tiles of keys are begun beyond the first."""

Piece = tuple[int, int, int]
"""(sequence, first token, end)"""


@torch.inference_mode()
def check_invariance(model: Model, layout: KVLayout, num_positions: int, device: torch.device) -> None:
    """The model gives the same bits however its rows are cut and mixed.

    Args:
        model: made with invariant kernels.
        layout: of the engine's cache; a small one like it is used here.
        num_positions: the model's context, tokens.
        device: where the model is.
    Raises:
        BadSettings: it does not, so the promise cannot be kept with this device and dtype.
    """
    first, second = (min(length, num_positions) for length in LENGTHS)
    middle, half = first // 2, second // 2
    whole: list[list[Piece]] = [[(0, 0, first)], [(1, 0, second)]]
    cut: list[list[Piece]] = [
        [(0, 0, middle), (1, 0, half)],
        [(1, half, half + 1)],
        [(0, middle, middle + 1), (1, half + 1, second)],
        [(0, middle + 1, first)],
    ]
    split = layout.blocks_for(first)
    num_blocks = split + layout.blocks_for(second)
    tables = (list(range(split)), list(range(split, num_blocks)))
    expected, found = (
        _states(model, KVCache(replace(layout, num_blocks=num_blocks), device), tables, batches)
        for batches in (whole, cut)
    )
    if not all(torch.equal(one, other) for one, other in zip(expected, found, strict=True)):
        raise BadSettings(
            f"Invariant numerics cannot be kept with {layout.dtype} on {device.type}: the same tokens gave other bits "
            "in other company; use fast numerics, or another dtype."
        )


def _states(
    model: Model, cache: KVCache, tables: tuple[list[int], list[int]], batches: list[list[Piece]]
) -> list[torch.Tensor]:
    """Final hidden states of each sequence; its tokens are its positions."""
    states: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    filled = ([piece for piece in batch if piece[1] < piece[2]] for batch in batches)
    for pieces in filter(None, filled):
        chunks = [Chunk(range(begin, end), begin, tables[which], end - begin) for which, begin, end in pieces]
        hidden = model.forward(make_batch(chunks, cache.layout.block_tokens, cache.tensor.device), cache)
        for (which, _, _), rows in zip(pieces, torch.split(hidden, [chunk.num_rows for chunk in chunks]), strict=True):
            states[which].append(rows)
    return [torch.cat(rows) for rows in states]
