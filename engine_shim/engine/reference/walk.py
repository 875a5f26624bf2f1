"""A forward pass that pauses whenever rows are under way between expert ranks, so that another may go on meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

import torch

Walk: TypeAlias = Generator[None, None, torch.Tensor]
"""Yields at each pause; returns what the pass gives."""


def finish(walk: Walk) -> torch.Tensor:
    """What the walk gives, its pauses waited out."""
    (result,) = in_turns([walk])
    return result


def in_turns(walks: list[Walk]) -> list[torch.Tensor]:
    """What the walks give. Each goes on to its next pause, one after the other: the order never depends on time."""
    results: dict[int, torch.Tensor] = {}
    while len(results) < len(walks):
        for number, walk in enumerate(walks):
            if number in results:
                continue
            try:
                next(walk)
            except StopIteration as end:
                results[number] = end.value
    return [results[number] for number in range(len(walks))]
