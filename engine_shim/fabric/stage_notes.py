"""What two fabrics say to each other about staged copies; sealed, and bound to both agents.

Ask     mover  -> target    I have a copy of so many chunks
Lend    target -> mover     these slots of my ring are yours until the copy is over
Full    target -> mover     no slot is free; go the direct way
Landed  mover  -> target    (the tag of a WRITE into a slot) a chunk is there
Done    target -> mover     it has been scattered; the slot may be written again
Back    mover  -> target    the copy has failed; the slots are yours again
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from engine_shim.fabric.port import PeerName
from router.contract.seal import MARK_BYTES, STAGE, Seal

MAGIC = b"TSTG"
_FORM = struct.Struct(">4sBQIIIII")


class Word(IntEnum):
    """The kind of a note."""

    ASK = 1
    LEND = 2
    FULL = 3
    LANDED = 4
    DONE = 5
    BACK = 6


@dataclass(frozen=True, slots=True)
class StageNote:
    """One note; fields that its Word does not need are 0."""

    word: Word
    key: int
    """The mover's number of the copy."""
    slot: int = 0
    chunk: int = 0
    num_chunks: int = 0
    num_rows: int = 0
    granule_bytes: int = 0
    tag: bytes = b""
    """Of the whole copy, with its last chunk; of a Lend, its slots as `pack_slots` has them."""

    def encode(self, seal: Seal, sender: PeerName, receiver: PeerName) -> bytes:
        """The note as sealed bytes."""
        numbers = (self.key, self.slot, self.chunk, self.num_chunks, self.num_rows, self.granule_bytes)
        body = _FORM.pack(MAGIC, self.word, *numbers) + self.tag
        return body + seal.mark(STAGE, _bound(body, sender, receiver))


def pack_slots(slots: Iterable[int]) -> bytes:
    """Slots as the tail of a Lend."""
    return struct.pack(f">{len(chosen := list(slots))}I", *chosen)


def unpack_slots(raw: bytes) -> tuple[int, ...]:
    """As they were packed; what is no whole number of slots has none."""
    return struct.unpack(f">{len(raw) // 4}I", raw) if len(raw) % 4 == 0 else ()


def is_stage_note(raw: bytes) -> bool:
    """True when these bytes mean to be one."""
    return raw[: len(MAGIC)] == MAGIC


def read_stage_note(raw: bytes, seal: Seal, sender: PeerName, receiver: PeerName) -> StageNote | None:
    """The note, or None when it is unreadable, forged, or meant for another pair."""
    body, mark = raw[:-MARK_BYTES], raw[-MARK_BYTES:]
    if len(body) < _FORM.size or not seal.holds(STAGE, _bound(body, sender, receiver), mark):
        return None
    _, word, key, slot, chunk, num_chunks, num_rows, granule_bytes = _FORM.unpack(body[: _FORM.size])
    tag = body[_FORM.size :]
    try:
        return StageNote(Word(word), key, slot, chunk, num_chunks, num_rows, granule_bytes, tag)
    except ValueError:
        return None


def _bound(body: bytes, sender: PeerName, receiver: PeerName) -> bytes:
    return b"\0".join((sender.encode(), receiver.encode(), body))
