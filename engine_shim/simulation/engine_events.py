"""What the toy engine tells, as the Engine port's events."""

from __future__ import annotations

from dataclasses import dataclass

from router.contract.ids import TransferId


@dataclass(frozen=True, slots=True)
class Seated:
    """Seats are reserved; tokens `wanted[0] <= t < wanted[1]` are wanted."""

    transfer_id: TransferId
    seats: tuple[int, ...]
    wanted: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Prefilling:
    """The KV of the first tokens is in these blocks, the whole prompt's, which are pinned."""

    transfer_id: TransferId
    blocks: tuple[int, ...]
    num_tokens: int
    num_layers: int = 0
    """Only the first so many layers of it are, and the prompt ends there; 0: all are."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The KV of the prompt is in these blocks, which are pinned."""

    transfer_id: TransferId
    blocks: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TokenOut:
    """A token of decode."""

    transfer_id: TransferId
    index: int
    is_last: bool


EngineEvent = Seated | Prefilling | Prefilled | TokenOut
