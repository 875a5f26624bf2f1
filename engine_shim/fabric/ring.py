"""The staging ring: slots of equal size in one registered Region, half of them to send from, half to receive into.

A slot that somebody might still write is not handed out: it rests first, for a second in which the ring has been polled
all the while (as for seats, see `core/polled.py`, but a long gap between two polls does not count at all).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from engine_shim.fabric.copier import Copier
from engine_shim.fabric.mapping import Mapper
from router.contract.kv import Region

SLOTS_EACH_WAY = 4
REST_S = 1.0
POLL_GAP_S = 0.1
"""A longer gap between two polls does not count as rest."""
ALIGN_BYTES = 4096
_CARD = struct.Struct(">4sQQBIIH")
_CARD_MAGIC = b"TRNG"
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class RingCard:
    """What a mover needs to know of a peer's ring."""

    region: Region
    slot_bytes: int
    mapping: bytes = b""
    """How the cache beside the ring can be addressed (see `mapping`); empty: not at all."""

    def encode(self) -> bytes:
        """As it goes before the agent's metadata."""
        one = self.region
        kind = _DEVICES.index(one.device)
        numbers = (one.base, one.num_bytes, kind, one.device_id, self.slot_bytes, len(self.mapping))
        return _CARD.pack(_CARD_MAGIC, *numbers) + self.mapping


def split_card(metadata: bytes) -> tuple[RingCard | None, bytes]:
    """The peer's ring, if it has one, and its agent's metadata."""
    if metadata[: len(_CARD_MAGIC)] != _CARD_MAGIC or len(metadata) < _CARD.size:
        return None, metadata
    _, base, num_bytes, kind, device_id, slot_bytes, mapping_bytes = _CARD.unpack(metadata[: _CARD.size])
    device, end = _DEVICES[min(kind, len(_DEVICES) - 1)], _CARD.size + mapping_bytes
    return RingCard(Region(base, num_bytes, device, device_id), slot_bytes, metadata[_CARD.size : end]), metadata[end:]


class Slots:
    """Free slots of one direction; those at rest become free by `tend`."""

    def __init__(self, slots: range, clock: Callable[[], float]) -> None:
        self._free = list(slots)
        self._resting: list[tuple[int, float]] = []
        """(slot, seconds of polled rest)."""
        self._clock = clock
        self._tended_at = clock()

    @property
    def num_free(self) -> int:
        """Slots at hand."""
        return len(self._free)

    def take(self) -> int | None:
        """A free slot is the caller's; None when there is none."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Nobody reads or writes the slot any more."""
        self._free.append(slot)

    def lay_to_rest(self, slot: int) -> None:
        """Somebody might still write the slot."""
        self._resting.append((slot, 0.0))

    def tend(self) -> None:
        """Polled time has passed for the slots at rest."""
        now = self._clock()
        gap, self._tended_at = now - self._tended_at, now
        if not self._resting or gap > POLL_GAP_S:
            return
        rested = [(slot, so_far + gap) for slot, so_far in self._resting]
        self._free += [slot for slot, so_far in rested if so_far >= REST_S]
        self._resting = [(slot, so_far) for slot, so_far in rested if so_far < REST_S]


@dataclass(frozen=True, slots=True)
class Ring:
    """One agent's ring."""

    card: RingCard
    copier: Copier
    outgoing: Slots
    incoming: Slots
    mapper: Mapper | None = None

    def tend(self) -> None:
        """Polled time has passed."""
        self.outgoing.tend()
        self.incoming.tend()

    def offset(self, slot: int) -> int:
        """Where the slot begins."""
        return slot * self.card.slot_bytes


def make_ring(region: Region, copier: Copier, clock: Callable[[], float], mapper: Mapper | None = None) -> Ring:
    """A ring over this memory; with a `mapper`, copies can do without it between caches that it reaches."""
    slot_bytes = region.num_bytes // (2 * SLOTS_EACH_WAY) // ALIGN_BYTES * ALIGN_BYTES
    outgoing, incoming = range(SLOTS_EACH_WAY), range(SLOTS_EACH_WAY, 2 * SLOTS_EACH_WAY)
    card = RingCard(region, slot_bytes, mapper.card() if mapper is not None else b"")
    return Ring(card, copier, Slots(outgoing, clock), Slots(incoming, clock), mapper)
