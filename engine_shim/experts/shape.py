"""ExpertShape: everything about one expert-parallel group that never changes, checked once.

    N ranks, each with E / N experts; T tokens on a rank, T <= max_tokens; K experts per token; H numbers per token

What must be known before memory is taken follows from it, in rows of one token each:

    exact     T * K rows may leave a rank and N * T * K may reach one (a token can name one expert twice)
    dedup     T * min(K, N) rows may leave a rank and N * T may reach one
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.contract.errors import BadSettings

SCALE_WIDTH = 128
"""Numbers of a row that share one scale in FP8."""
ROW_MULTIPLE_BYTES = 16
"""Rows are moved in vectors of so many bytes."""


class ExpertNumerics(StrEnum):
    """What is moved and in which order it is summed; it changes the last bits of a result, so nobody switches it."""

    EXACT = "exact"
    """A row per (token, expert); its origin sums the K answers in the order of k. Bits do not depend on N."""
    DEDUP = "dedup"
    """A row per (token, rank); the rank sums its own answers in the order of k, rounds once to the format of combine,
    and the origin sums those partial sums in the order of ranks."""


class RowFormat(StrEnum):
    """How the numbers of a row travel."""

    FP8 = "fp8"
    """float8 e4m3, with one float32 scale for every SCALE_WIDTH numbers; for dispatch only."""
    BF16 = "bf16"
    F32 = "f32"

    @property
    def number_bytes(self) -> int:
        """Bytes of one number."""
        return {RowFormat.FP8: 1, RowFormat.BF16: 2, RowFormat.F32: 4}[self]


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The group's constants; equal on all its ranks."""

    num_ranks: int
    num_experts: int
    top_k: int
    hidden_size: int
    max_tokens: int
    """The most tokens of one rank in one step."""
    expert_align: int = 1
    """Each expert's rows begin at a multiple of this (grouped GEMM), and so does the end."""
    numerics: ExpertNumerics = ExpertNumerics.EXACT
    dispatch_format: RowFormat = RowFormat.FP8
    combine_format: RowFormat = RowFormat.BF16

    def __post_init__(self) -> None:
        """Raise BadSettings for a group that cannot be."""
        for name in ("num_ranks", "num_experts", "top_k", "hidden_size", "max_tokens", "expert_align"):
            if getattr(self, name) < 1:
                raise BadSettings(f"Expert setting {name} is {getattr(self, name)}; it must be at least 1.")
        if self.num_experts % self.num_ranks:
            raise BadSettings(
                f"{self.num_experts} experts cannot be shared evenly by {self.num_ranks} ranks; choose a number of "
                "ranks that divides the experts, or add redundant experts until it does."
            )
        if self.combine_format is RowFormat.FP8:
            raise BadSettings("Combine in fp8 is not supported; use bf16 or f32.")
        if self.dispatch_format is RowFormat.FP8 and self.hidden_size % SCALE_WIDTH:
            raise BadSettings(
                f"Hidden size {self.hidden_size} is no multiple of {SCALE_WIDTH}, the width of an fp8 scale; "
                "dispatch in bf16."
            )
        for what in (self.dispatch_format, self.combine_format):
            if self.hidden_size * what.number_bytes % ROW_MULTIPLE_BYTES:
                raise BadSettings(
                    f"A row of {self.hidden_size} {what} numbers is no multiple of {ROW_MULTIPLE_BYTES} bytes; "
                    "pad the hidden size."
                )

    @property
    def deduplicates(self) -> bool:
        """True where a token travels to each rank once."""
        return self.numerics is ExpertNumerics.DEDUP

    @property
    def local_experts(self) -> int:
        """Experts of one rank: those of rank r are r * local_experts and the following."""
        return self.num_experts // self.num_ranks

    @property
    def num_scales(self) -> int:
        """float32 scales of one dispatched row; 0 without FP8."""
        return self.hidden_size // SCALE_WIDTH if self.dispatch_format is RowFormat.FP8 else 0

    @property
    def capacity_rows(self) -> int:
        """Rows of the final layout on one rank in the worst case: all tokens of all ranks come, with all their K."""
        most = self.num_ranks * self.max_tokens * self.top_k
        # Every expert that has rows may waste align - 1 of them; an expert without rows wastes none.
        return most + min(self.local_experts, most) * (self.expert_align - 1)

    @property
    def most_sent_rows(self) -> int:
        """Rows that one rank sends to all ranks together, itself included, in the worst case."""
        per_token = min(self.top_k, self.num_ranks) if self.deduplicates else self.top_k
        return self.max_tokens * per_token

    @property
    def most_arriving_rows(self) -> int:
        """Rows that may arrive at one rank from all ranks together, before they are spread to experts."""
        per_token = 1 if self.deduplicates else self.top_k
        return self.num_ranks * self.max_tokens * per_token

    @property
    def dispatch_row_bytes(self) -> int:
        """Bytes of one dispatched row: its numbers and scales, without what a transport adds."""
        return self.hidden_size * self.dispatch_format.number_bytes + 4 * self.num_scales

    @property
    def combine_row_bytes(self) -> int:
        """Bytes of one row on the way back."""
        return self.hidden_size * self.combine_format.number_bytes
