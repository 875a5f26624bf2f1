"""On which GPU each expert rank of an engine computes: pure.

The engine computes on the first, where its KV cache is as well; a rank on another one addresses the cache there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.contract.errors import BadSettings

Reaches = Callable[[int, int], bool]
"""Kernels on the first GPU can address memory of the second."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be placed."""

    num_ranks: int
    first: int = 0
    """The engine's own GPU."""
    num_gpus: int = 0
    """Asked for, from `first` on, and so to be used or refused; 0: as many as there are, at most one a rank."""
    addressed: bool = False
    """Every rank addresses the memory of every other, besides the KV cache."""


def place_ranks(wish: Wish, num_visible: int, reaches: Reaches) -> tuple[int, ...]:
    """The GPU of each rank: the ranks go round over those that are used, beginning with the first.

    Without a number of GPUs that was asked for, those are left out that cannot address what they must.

    Args:
        num_visible: how many there are; no fewer than were asked for.
    Raises:
        BadSettings: GPUs that were asked for cannot address each other's memory.
    """
    gpus = [wish.first]
    for gpu in range(wish.first + 1, num_visible):
        if len(gpus) == (wish.num_gpus or wish.num_ranks):
            break
        strange = _out_of_reach(gpu, gpus if wish.addressed else gpus[:1], reaches)
        if strange is None:
            gpus.append(gpu)
        elif wish.num_gpus:
            raise BadSettings(
                f"GPU {gpu} and GPU {strange} cannot address each other's memory, as ranks of one engine must; "
                "name linked ones, or a single one, with --devices."
            )
    return tuple(gpus[rank % len(gpus)] for rank in range(wish.num_ranks))


def _out_of_reach(gpu: int, others: Sequence[int], reaches: Reaches) -> int | None:
    """The first of `others` that is not linked with `gpu` both ways."""
    return next((other for other in others if not (reaches(gpu, other) and reaches(other, gpu))), None)
