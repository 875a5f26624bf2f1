"""Signal: what is said when bytes have landed, and the counting of it.

A network may deliver two puts in any order, and a flag sent after data may come before them (SRD). The only order that
is leaned on: a Signal comes after the bytes of its own put. So a receiver never looks for "the last write"; it counts,
for each (epoch, phase), which ranks have landed. Every rank sends exactly one put, or a bare Signal, per phase to every
other, so the number is known beforehand; a put that a transport cuts in several says of how many.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from engine_shim.experts.port import Phase

_FORM = struct.Struct("<QHHHH")


@dataclass(frozen=True, slots=True)
class Signal:
    """One landing."""

    epoch: int
    phase: Phase
    part: int = 0
    num_parts: int = 1
    culprit: int = 0
    """In REFUSED: the rank because of which the sender gives up."""

    def encode(self) -> bytes:
        """16 bytes."""
        return _FORM.pack(self.epoch, self.phase, self.part, self.num_parts, self.culprit)


def decode_signal(raw: bytes) -> Signal | None:
    """The Signal, or None where these bytes are none."""
    if len(raw) != _FORM.size:
        return None
    epoch, phase, part, num_parts, culprit = _FORM.unpack(raw)
    if phase not in set(Phase) or not part < num_parts:
        return None
    return Signal(epoch, Phase(phase), part, num_parts, culprit)


@dataclass(slots=True)
class Landings:
    """Grow-only sets of what has landed: order-free, and proof against repetition."""

    over: int = 0
    """Epochs up to this one are over; what still comes of them is counted and changes nothing."""
    num_stale: int = 0
    num_repeated: int = 0
    _parts: dict[tuple[int, Phase], dict[int, set[int]]] = field(default_factory=dict)
    _complete: dict[tuple[int, Phase], set[int]] = field(default_factory=dict)

    def land(self, source: int, signal: Signal) -> None:
        """Count one Signal of rank `source`."""
        if signal.epoch <= self.over:
            self.num_stale += 1
            return
        key = (signal.epoch, signal.phase)
        parts = self._parts.setdefault(key, {}).setdefault(source, set())
        if signal.part in parts:
            self.num_repeated += 1
            return
        parts.add(signal.part)
        if len(parts) == signal.num_parts:
            self._complete.setdefault(key, set()).add(source)

    def of(self, epoch: int, phase: Phase) -> set[int]:
        """The ranks whose put of this phase has landed whole."""
        return self._complete.get((epoch, phase), set())

    def end(self, epoch: int) -> None:
        """This epoch and all before it are over."""
        self.over = max(self.over, epoch)
        self._parts = {key: parts for key, parts in self._parts.items() if key[0] > self.over}
        self._complete = {key: ranks for key, ranks in self._complete.items() if key[0] > self.over}
