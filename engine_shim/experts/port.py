"""The Experts port: dispatch and combine of one rank, each with a send and a receive half.

    flight   = experts.dispatch_send(x, topk, weights)       rows are on their way
    held     = experts.dispatch_receive(flight)              this rank's experts' rows are here
    answers  = ...the grouped GEMM over held...
    experts.combine_send(flight, answers)                    answers are on their way back
    y        = experts.combine_receive(flight)               [T, H]; the flight is over

Other work fits between two halves. Every rank of the group takes every step, with zero tokens if it has none: whoever
stays away makes the others wait, to their deadline. A *flight* is one step; its number, the epoch, is the same on all
ranks. At most `flights` of them are under way at once (two: one micro-batch computes while the other travels), and
their halves may be interleaved, in the same order on all ranks.

Why no barrier is needed. A rank sends dispatch of epoch e + flights only after it has received all combines of e, which
its peers send after they have read their dispatch of e; so a region that is used by epochs of one residue modulo
`flights` is free when it is written. The same holds for combine the other way round.

Every wait is bounded. When it ends without its landings, the group has failed for good: this and every later call
raises RankGone, and `status` names epoch, phase and peer. To go on without a rank, mask it before the flight that would
wait for it; or begin a new group, and mask it there.

A flight's halves come in the order above, each once; anything else is a bug of the caller, raised as Impossible (over
NVLink as RankGone).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType, Protocol

import torch

from engine_shim.experts.plan import TargetPlan
from engine_shim.experts.quantise import Rows
from engine_shim.experts.shape import ExpertShape

Flight = NewType("Flight", int)
"""Epoch of one step: 1, 2, ... in a group."""


class Phase(IntEnum):
    """What a wait is for."""

    NONE = 0
    COUNTS = 1
    DISPATCH = 2
    OVERFLOW = 3
    COMBINE = 4
    REFUSED = 5
    """A rank has said that it gives up, and because of whom."""


@dataclass(frozen=True, slots=True)
class Status:
    """Why a group has failed; all zero while it is well."""

    epoch: int = 0
    phase: Phase = Phase.NONE
    peer: int = 0
    """The first rank of those that were waited for."""
    expected: int = 0
    seen: int = 0
    """How many ranks were waited for, and how many of them had come."""

    @property
    def failed(self) -> bool:
        """True once a wait has ended without its landings."""
        return self.phase is not Phase.NONE


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What this rank's experts have to compute."""

    rows: Rows
    """[slots, ...] in the final layout: at least `target.expert_offsets[-1]` slots. What lies in padding and beyond the
    end is unspecified. Valid until `combine_send` of the same flight."""
    target: TargetPlan


class Experts(Protocol):
    """One rank of an expert-parallel group."""

    @property
    def shape(self) -> ExpertShape:
        """The group's constants."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. N - 1."""

    def dispatch_send(
        self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, num_tokens: int | torch.Tensor | None = None
    ) -> Flight:
        """This rank's rows are on their way.

        Args:
            x: [T, H] bfloat16 or float32, finite.
            topk: integers [T, K]; -1 is "no expert".
            weights: float32 [T, K]; who multiplies by them is this port, in combine, and nobody else.
            num_tokens: only so many leading rows count (an int32 scalar on the device under a CUDA graph); None: all.
        Raises:
            BadRequest: what was given does not fit the shape; the peers are told, and their flight fails at once.
            RankGone: the group has failed.
            Impossible: too many flights are under way.
        """

    def dispatch_receive(self, flight: Flight) -> Dispatched:
        """The rows of this rank's experts, from all ranks. Raises RankGone."""

    def combine_send(self, flight: Flight, answers: torch.Tensor) -> None:
        """The answers [slots, H], float32 or bfloat16, one per slot, are on their way back.

        Raises:
            BadRequest: fewer answers, or of another width; the peers are told, and their flight fails at once.
            RankGone: the group has failed.
        """

    def combine_receive(self, flight: Flight, out: torch.Tensor | None = None) -> torch.Tensor:
        """[T, H] weighted sums, in x's dtype or into `out`; of these only the leading `num_tokens`. The flight is over.

        Raises:
            BadRequest: `out` has too few rows or another width; the flight can still be received.
            RankGone: the group has failed.
        """

    def mask(self, peers: frozenset[int]) -> None:
        """From the next flight on these ranks are neither written nor awaited, and their experts contribute 0.

        All other ranks must mask the same ranks before the same flight. Raises BadRequest for this rank itself.
        """

    @property
    def status(self) -> Status:
        """Whether, and why, the group has failed."""

    def close(self) -> None:
        """Memory is given back; a second call does nothing.

        Peers that wait for this rank are told; over NVLink none of them may be in a flight.
        """
