"""ReceiveCounter: Landings in, KVReady out, exactly once.

Expectation travels with arrival (each Tag says how many Tags there are), so a Landing cannot come too early. State is
a grow-only set per writer: order-free and proof against duplicates by construction. Ready when every writer's set is
full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from router.contract.ids import Epoch
from router.contract.tags import Tag


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
    _landed: dict[int, set[int]] = field(default_factory=dict)

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
        if self._num_writers not in (None, tag.num_writers) or self._totals.get(tag.writer, tag.total) != tag.total:
            return Landing.FAULT
        landed = self._landed.setdefault(tag.writer, set())
        if tag.seq in landed:
            return Landing.REPEATED
        self._num_writers = tag.num_writers
        self._totals[tag.writer] = tag.total
        landed.add(tag.seq)
        return Landing.READY if self.ready else Landing.COUNTED
