"""Tag: what a WRITE announces when it lands.

A Tag has a fixed width and is compared whole, because NIXL's own matching is by prefix (`req-1` would match `req-10`).
Expectation travels with arrival: each Tag says how many there are, so a Landing can never come "too early". A writer
that does not know yet how many WRITEs there will be says OPEN, and the last one says the total.

    offset  bytes  field
    0       4      magic `TNDM`
    4       1      version
    5       16     digest of the TransferId
    21      8      epoch of the writer
    29      2      writer, 0 <= writer < num_writers
    31      2      num_writers
    33      4      seq, 0 <= seq < total
    37      4      total WRITEs of this writer; 0 (OPEN): at least one more than seq + 1
    41      16     the Seal's mark over all of the above
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from router.contract.ids import Epoch
from router.contract.seal import MARK_BYTES, TAG, Seal

MAGIC = b"TNDM"
VERSION = 3
OPEN = 0
"""Instead of a total: more WRITEs follow, and the last one says how many there were."""
_FORM = struct.Struct(">4sB16sQHHII")
TAG_BYTES = _FORM.size + MARK_BYTES


@dataclass(frozen=True, slots=True)
class Tag:
    """The label of one WRITE."""

    digest: bytes
    writer_epoch: Epoch
    writer: int
    num_writers: int
    seq: int
    total: int

    def encode(self, seal: Seal) -> bytes:
        """The Tag as TAG_BYTES sealed bytes."""
        body = _FORM.pack(
            MAGIC, VERSION, self.digest, self.writer_epoch, self.writer, self.num_writers, self.seq, self.total
        )
        return body + seal.mark(TAG, body)


def is_tag(raw: bytes) -> bool:
    """True when these bytes mean to be a Tag, of whatever version."""
    return raw[: len(MAGIC)] == MAGIC


def decode_tag(raw: bytes, seal: Seal) -> Tag | None:
    """The Tag in `raw`, or None when it is none of this version, contradicts itself, or is sealed with another key."""
    if len(raw) != TAG_BYTES or not seal.holds(TAG, raw[: _FORM.size], raw[_FORM.size :]):
        return None
    magic, version, digest, epoch, writer, num_writers, seq, total = _FORM.unpack(raw[: _FORM.size])
    if magic != MAGIC or version != VERSION or writer >= num_writers or (total != OPEN and seq >= total):
        return None
    return Tag(digest, Epoch(epoch), writer, num_writers, seq, total)
