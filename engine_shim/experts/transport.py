"""The Transport port: one rank's memory, and its way to all ranks of its group, itself included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine_shim.experts.signal import Signal


@dataclass(frozen=True, slots=True)
class Put:
    """A one-sided copy from our outbox into a peer's inbox, and what is said there once all its bytes have landed."""

    peer: int
    source: int
    """Offset in our outbox, bytes."""
    target: int
    """Offset in the peer's inbox, bytes."""
    num_bytes: int
    """0: only the Signal."""
    signal: Signal


class Transport(Protocol):
    """Nothing here blocks. A Signal comes after the bytes of its own Put; between Puts there is no order at all."""

    @property
    def inbox(self) -> torch.Tensor:
        """uint8 [Regions.inbox_bytes], written by the peers."""

    @property
    def outbox(self) -> torch.Tensor:
        """uint8 [Regions.outbox_bytes]; what a Put reads must not be changed until its answer has come."""

    def scatter(self, puts: Sequence[Put]) -> None:
        """All of them are on their way; a peer that is known to be dead shows in `gone`."""

    def poll(self) -> list[tuple[int, Signal]]:
        """Move everything forward; the landings that are new, each with its source rank."""

    @property
    def gone(self) -> frozenset[int]:
        """Ranks that are known to be dead."""

    @property
    def busy(self) -> frozenset[int]:
        """Ranks to which a Put of ours needs more polls before it has landed and been told."""

    def close(self) -> None:
        """Nothing is registered any more; a second call does nothing."""
