"""ReceiveCounter: Landings in, KVReady out, exactly once.

Expectation travels with arrival (each Tag says how many Tags there are, or that more follow), so a Landing cannot come
too early. State is a grow-only set per writer: order-free and proof against duplicates by construction. Ready when
every writer's total is known and his set is full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from router.contract.ids import Epoch
from router.contract.tags import OPEN, Tag


class Landing(StrEnum):
    """What one arrived Tag meant."""

    COUNTED = "counted"
    """New, and more are expected."""
    READY = "ready"
    """New, and the last one: the KV is complete."""
    REPEATED = "repeated"
    """Seen before; changes nothing."""
    STALE = "stale"
    """Of another attempt or another start of the writer; changes nothing."""
    FAULT = "fault"
    """Contradicts an earlier Tag of this transfer; the KV must not be trusted."""


@dataclass(slots=True)
class ReceiveCounter:
    """Counts the Landings of one transfer."""

    digest: bytes
    writer_epoch: Epoch
    _num_writers: int | None = None
    _totals: dict[int, int] = field(default_factory=dict)
    _landed: dict[int, dict[int, int]] = field(default_factory=dict)
    """By writer: each seq that has landed, with the total that its Tag named."""

    @property
    def ready(self) -> bool:
        """True when every promised WRITE has landed."""
        if self._num_writers is None or len(self._totals) < self._num_writers:
            return False
        return all(len(self._landed[writer]) == total for writer, total in self._totals.items())

    def land(self, tag: Tag) -> Landing:
        """Count one Tag; READY is answered exactly once."""
        if tag.digest != self.digest or tag.writer_epoch != self.writer_epoch:
            return Landing.STALE
        landed = self._landed.get(tag.writer, {})
        if landed.get(tag.seq) == tag.total and self._num_writers == tag.num_writers:
            return Landing.REPEATED
        if tag.seq in landed or self._contradicts(tag, landed):
            return Landing.FAULT
        self._num_writers = tag.num_writers
        if tag.total != OPEN:
            self._totals[tag.writer] = tag.total
        self._landed.setdefault(tag.writer, landed)[tag.seq] = tag.total
        return Landing.READY if self.ready else Landing.COUNTED

    def _contradicts(self, tag: Tag, landed: dict[int, int]) -> bool:
        """True when this Tag and those before it cannot all be true."""
        if self._num_writers not in (None, tag.num_writers):
            return True
        total = self._totals.get(tag.writer, tag.total)
        if tag.total not in (OPEN, total):
            return True
        if total == OPEN:
            return False
        every = {**landed, tag.seq: tag.total}
        return any(seq + (named == OPEN) >= total for seq, named in every.items())
