"""Regions: how the memory of one rank is divided, in bytes, known before any is taken.

A rank has an *inbox* that its peers write, and an *outbox* that its puts are read from. Each is divided in as many
equal slots as there may be flights; epoch e uses slot e mod flights. In a slot:

    inbox     counts [N rows] | private [N][private_rows] | overflow [overflow_rows] | combine [most_sent_rows]
    outbox    counts          | dispatch [most_sent_rows]                            | combine [most_arriving_rows]

**Private and overflow.** Between hosts a round trip is dear, so rows leave before the receiver's counts are known: the
first `private_rows` of each source have a place of their own. What a skewed routing brings beyond that waits for the
counts of all ranks, from which each sender derives where its part of the overflow begins. The overflow holds the worst
case, so no routing is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from engine_shim.experts.shape import ROW_MULTIPLE_BYTES, ExpertShape
from router.contract.errors import BadSettings

PRIVATE_SHARE = 1.2
"""Private rows of a source, in parts of what uniform routing brings."""
SECTION_BYTES = 64
"""Sections begin at multiples of a cache line."""


@dataclass(frozen=True)
class Regions:
    """Sizes and offsets of one rank's memory; equal on all ranks."""

    shape: ExpertShape
    private_rows: int
    flights: int = 2

    @cached_property
    def most_from_one(self) -> int:
        """Rows that one source may bring."""
        shape = self.shape
        return shape.max_tokens * (1 if shape.deduplicates else shape.top_k)

    @cached_property
    def overflow_rows(self) -> int:
        """Rows beyond the private ones, in the worst case."""
        return self.shape.num_ranks * (self.most_from_one - self.private_rows)

    @cached_property
    def counts_bytes(self) -> int:
        """One rank's counts: int32 [E | N]: rows for each expert, tokens for each rank."""
        return round_up(4 * (self.shape.num_experts + self.shape.num_ranks), SECTION_BYTES)

    @cached_property
    def dispatch_bytes(self) -> int:
        """One dispatched row with what it carries; see `wire`."""
        extra = 12 * self.shape.top_k if self.shape.deduplicates else 0
        return round_up(self.shape.dispatch_row_bytes + extra, ROW_MULTIPLE_BYTES)

    def inbox_counts(self, epoch: int, source: int) -> int:
        """Where `source`'s counts land."""
        return self._inbox(epoch) + source * self.counts_bytes

    def inbox_private(self, epoch: int, source: int) -> int:
        """Where `source`'s first rows land."""
        return self._inbox(epoch) + self._counts_end + source * self.private_rows * self.dispatch_bytes

    def inbox_overflow(self, epoch: int) -> int:
        """Where the overflow of all sources begins."""
        return self._inbox(epoch) + self._private_end

    def inbox_combine(self, epoch: int) -> int:
        """Where the answers to this rank's own rows lie, in the order in which the rows left."""
        return self._inbox(epoch) + self._overflow_end

    def outbox_counts(self, epoch: int) -> int:
        """This rank's counts on their way."""
        return epoch % self.flights * self._outbox_slot

    def outbox_dispatch(self, epoch: int) -> int:
        """This rank's rows on their way."""
        return self.outbox_counts(epoch) + self.counts_bytes

    def outbox_combine(self, epoch: int) -> int:
        """Answers on their way."""
        return self.outbox_dispatch(epoch) + self._sent_bytes

    @cached_property
    def inbox_bytes(self) -> int:
        """All of the inbox."""
        return self.flights * self._inbox_slot

    @cached_property
    def outbox_bytes(self) -> int:
        """All of the outbox."""
        return self.flights * self._outbox_slot

    @cached_property
    def total_bytes(self) -> int:
        """What one rank takes."""
        return self.inbox_bytes + self.outbox_bytes

    @cached_property
    def _counts_end(self) -> int:
        return self.shape.num_ranks * self.counts_bytes

    @cached_property
    def _private_end(self) -> int:
        private = self.shape.num_ranks * self.private_rows * self.dispatch_bytes
        return round_up(self._counts_end + private, SECTION_BYTES)

    @cached_property
    def _overflow_end(self) -> int:
        return round_up(self._private_end + self.overflow_rows * self.dispatch_bytes, SECTION_BYTES)

    @cached_property
    def _inbox_slot(self) -> int:
        sent = self.shape.most_sent_rows * self.shape.combine_row_bytes
        return round_up(self._overflow_end + sent, SECTION_BYTES)

    @cached_property
    def _outbox_slot(self) -> int:
        arriving = self.shape.most_arriving_rows * self.shape.combine_row_bytes
        return self.counts_bytes + self._sent_bytes + round_up(arriving, SECTION_BYTES)

    @cached_property
    def _sent_bytes(self) -> int:
        return round_up(self.shape.most_sent_rows * self.dispatch_bytes, SECTION_BYTES)

    def _inbox(self, epoch: int) -> int:
        return epoch % self.flights * self._inbox_slot


def plan_regions(shape: ExpertShape, *, flights: int = 2, private_rows: int = 0, most_bytes: int = 0) -> Regions:
    """The Regions of a group.

    Args:
        private_rows: rows of each source that need not wait for counts; 0: PRIVATE_SHARE times what uniform routing
            brings, or all where rows are de-duplicated.
        most_bytes: refuse to take more than this; 0: no limit.
    Raises:
        BadSettings: no flights, or more bytes are needed than allowed; the sentence says how many, and for what.
    """
    if flights < 1:
        raise BadSettings(f"Expert setting flights is {flights}; it must be at least 1.")
    most = shape.max_tokens * (1 if shape.deduplicates else shape.top_k)
    if not private_rows:
        uniform = -(-shape.max_tokens * shape.top_k // shape.num_ranks)
        private_rows = most if shape.deduplicates else int(PRIVATE_SHARE * uniform) + 1
    regions = Regions(shape, min(private_rows, most), flights)
    if most_bytes and regions.total_bytes > most_bytes:
        raise BadSettings(
            f"Expert buffers for {shape.max_tokens} tokens on {shape.num_ranks} ranks need {regions.total_bytes} bytes "
            f"a rank (inbox {regions.inbox_bytes}, outbox {regions.outbox_bytes}), but {most_bytes} are allowed; "
            "lower max_tokens or flights, or use dedup numerics."
        )
    return regions


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not below `value`."""
    return -(-value // multiple) * multiple
