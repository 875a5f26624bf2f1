"""Tag: what a WRITE announces when it lands.

A Tag has a fixed width and is compared whole, because NIXL's own matching is by prefix (`req-1` would match `req-10`).
Expectation travels with arrival: each Tag says how many there are, so a Landing can never come "too early".

    offset  bytes  field
    0       4      magic `TNDM`
    4       1      version
    5       16     digest of the TransferId
    21      8      epoch of the writer
    29      2      writer, 0 <= writer < num_writers
    31      2      num_writers
    33      4      seq, 0 <= seq < total
    37      4      total WRITEs of this writer
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from router.contract.ids import Epoch

MAGIC = b"TNDM"
VERSION = 1
_FORM = struct.Struct(">4sB16sQHHII")
TAG_BYTES = _FORM.size


@dataclass(frozen=True, slots=True)
class Tag:
    """The label of one WRITE."""

    digest: bytes
    writer_epoch: Epoch
    writer: int
    num_writers: int
    seq: int
    total: int

    def encode(self) -> bytes:
        """The Tag as TAG_BYTES bytes."""
        return _FORM.pack(
            MAGIC, VERSION, self.digest, self.writer_epoch, self.writer, self.num_writers, self.seq, self.total
        )


def decode_tag(raw: bytes) -> Tag | None:
    """The Tag in `raw`, or None when these bytes are no Tag of this version or contradict themselves."""
    if len(raw) != TAG_BYTES:
        return None
    magic, version, digest, epoch, writer, num_writers, seq, total = _FORM.unpack(raw)
    if magic != MAGIC or version != VERSION or writer >= num_writers or seq >= total:
        return None
    return Tag(digest, Epoch(epoch), writer, num_writers, seq, total)
