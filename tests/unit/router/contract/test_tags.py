import struct
from dataclasses import replace

import pytest

from router.contract.ids import Epoch, TransferId, digest_of
from router.contract.seal import TAG as PURPOSE
from router.contract.seal import Seal
from router.contract.tags import OPEN, TAG_BYTES, Tag, decode_tag, is_tag

SEAL = Seal("k" * 32)
TAG = Tag(digest_of(TransferId("req-1.1")), Epoch(2**40), writer=1, num_writers=2, seq=3, total=4)


def test_the_wire_form_is_that_of_the_table() -> None:
    raw = TAG.encode(SEAL)
    assert (len(raw), TAG_BYTES) == (57, 57)
    assert (raw[:4], raw[4], raw[5:21]) == (b"TNDM", 3, TAG.digest)
    assert struct.unpack(">QHHII", raw[21:41]) == (2**40, 1, 2, 3, 4)
    assert raw[41:] == SEAL.mark(PURPOSE, raw[:41])


@pytest.mark.parametrize(
    ("offset", "width", "value"),
    [(4, 1, 2), (29, 2, 2), (31, 2, 1), (31, 2, 0), (33, 4, 4), (37, 4, 3), (37, 4, 1)],
)
def test_a_tag_that_contradicts_itself_is_none(offset: int, width: int, value: int) -> None:
    raw = bytearray(TAG.encode(SEAL))
    raw[offset : offset + width] = value.to_bytes(width, "big")
    raw[41:] = SEAL.mark(PURPOSE, bytes(raw[:41]))
    assert is_tag(bytes(raw))
    assert decode_tag(bytes(raw), SEAL) is None


def test_a_tag_under_another_key_is_none() -> None:
    assert decode_tag(TAG.encode(Seal("x" * 32)), SEAL) is None
    assert decode_tag(TAG.encode(Seal()), SEAL) is None


@pytest.mark.parametrize("raw", [b"", TAG.encode(SEAL)[:-1], TAG.encode(SEAL) + b"\0", b"TN1R" + TAG.encode(SEAL)[4:]])
def test_bytes_that_are_no_tag_are_none(raw: bytes) -> None:
    assert decode_tag(raw, SEAL) is None


def test_a_tag_comes_back_as_it_was() -> None:
    for tag in (TAG, replace(TAG, total=OPEN)):
        assert decode_tag(tag.encode(SEAL), SEAL) == tag


def test_transfers_whose_ids_share_a_prefix_have_tags_that_do_not() -> None:
    one, ten = (Tag(digest_of(TransferId(name)), Epoch(1), 0, 1, 0, 1).encode(SEAL) for name in ("req-1.1", "req-1.10"))
    assert one[5:21] != ten[5:21]
