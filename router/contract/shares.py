"""What replicas and the store say to each other about a budget that is divided among replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNLIMITED = -1
"""A total that is none."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a replica asks for, of one thing that is counted: requests, or prompt tokens."""

    total: int
    keeps: int
    """Not to be taken from it: in flight, or let in until the answer comes."""
    target: int
    """Its fair part."""
    wants: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store has written down for the replica that asked: requests first, then tokens."""

    granted: tuple[int, int]
    in_doubt: bool
    """The store may not know what all hold: nobody's part grows for a lease."""
    others_want: tuple[Mapping[str, int], Mapping[str, int]]
    """By replica."""
