import json

import pytest

from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.notices import (
    Acknowledged,
    Cancelled,
    Granted,
    Left,
    Moved,
    Notice,
    Queued,
    Refused,
    Registered,
    Stopped,
    read_notice,
    write_notice,
)
from router.contract.rendezvous import PrefillDone, Registration
from router.contract.seal import NOTICE, Seal
from tests.support.notices import delivered, receiver_of, sender_of

T, D, P = TransferId("req-1.1"), EngineId("d0@1"), EngineId("p0@1")
SEAL = Seal("k" * 32)
PARTIES = b'"transfer_id":"req-1.1","prefill_engine_id":"p0@1","decode_engine_id":"d0@1"'

# Kind and body on the wire: what one release sends, another must read.
WIRE: dict[bytes, Notice] = {
    b'R{"registration":{"transfer_id":"req-1.1","mode":"push","decode_engine_id":"d0@1",'
    b'"prefill_engine_id":"p0@1","seats":[4,5],"first_token":0,"num_tokens":31}}': Registered(
        Registration(T, Mode.PUSH, D, P, (4, 5), 0, 31)
    ),
    b"Q{" + PARTIES + b"}": Queued(T, P, D),
    b"A{" + PARTIES + b"}": Acknowledged(T, P, D),
    b'G{"done":{"transfer_id":"req-1.1","blocks":[7],"num_tokens":16},"prefill_engine_id":"p0@1",'
    b'"decode_engine_id":"d0@1"}': Granted(PrefillDone(T, (7,), 16), P, D),
    b"M{" + PARTIES + b',"error":""}': Moved(T, P, D, ""),
    b"C{" + PARTIES + b"}": Cancelled(T, P, D),
    b"X{" + PARTIES + b',"reason":"cancelled","begun":true}': Stopped(T, P, D, "cancelled", True),
    b'L{"engine_id":"p0@1"}': Left(P),
}


def framed(kind_and_body: bytes, seal: Seal = SEAL) -> bytes:
    return b"TN2" + kind_and_body[:1] + seal.mark(NOTICE, kind_and_body) + kind_and_body[1:]


@pytest.mark.parametrize(("raw", "notice"), WIRE.items())
def test_the_wire_form_of_each_notice(raw: bytes, notice: Notice) -> None:
    assert write_notice(notice, SEAL) == framed(raw)
    assert delivered(framed(raw), notice, SEAL) == notice


@pytest.mark.parametrize(("raw", "notice"), WIRE.items())
def test_a_notice_under_another_key_is_forged(raw: bytes, notice: Notice) -> None:
    assert delivered(framed(raw, Seal("x" * 32)), notice, SEAL) is Refused.FORGED
    assert delivered(framed(raw, Seal()), notice, SEAL) is Refused.FORGED


@pytest.mark.parametrize(("raw", "notice"), WIRE.items())
def test_a_notice_from_another_than_it_names_is_forged(raw: bytes, notice: Notice) -> None:
    read = read_notice(framed(raw), SEAL, sender=EngineId("mallory@1"), receiver=receiver_of(notice))
    assert read is Refused.FORGED


@pytest.mark.parametrize(("raw", "notice"), [pair for pair in WIRE.items() if not isinstance(pair[1], Left)])
def test_a_notice_for_an_earlier_start_is_refused(raw: bytes, notice: Notice) -> None:
    restarted = EngineId(receiver_of(notice).replace("@1", "@2"))
    assert read_notice(framed(raw), SEAL, sender=sender_of(notice), receiver=restarted) is Refused.STALE_EPOCH


def test_unknown_fields_are_ignored() -> None:
    raw = framed(b"C{" + PARTIES + b',"why":[1]}')
    assert delivered(raw, Cancelled(T, P, D), SEAL) == Cancelled(T, P, D)


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "teleport"},
        {"mode": []},
        {"seats": "45"},
        {"seats": [4, -1]},
        {"seats": [4, True]},
        {"seats": [4, 1.0]},
        {"seats": None},
        {"first_token": -1},
        {"first_token": 32},
        {"num_tokens": "31"},
        {"num_tokens": True},
        {"transfer_id": 7},
        {"decode_engine_id": None},
    ],
)
def test_a_registration_with_a_bad_field_is_unreadable(change: dict[str, object]) -> None:
    body = json.loads(next(iter(WIRE))[1:])
    body["registration"].update(change)
    raw = framed(b"R" + json.dumps(body).encode())
    assert read_notice(raw, SEAL, sender=D, receiver=P) is Refused.UNREADABLE


@pytest.mark.parametrize("missing", ["transfer_id", "mode", "seats", "first_token", "num_tokens", "prefill_engine_id"])
def test_a_registration_with_a_missing_field_is_unreadable(missing: str) -> None:
    body = json.loads(next(iter(WIRE))[1:])
    del body["registration"][missing]
    raw = framed(b"R" + json.dumps(body).encode())
    assert read_notice(raw, SEAL, sender=D, receiver=P) is Refused.UNREADABLE


def test_begun_must_be_true_or_false() -> None:
    raw = framed(b"X{" + PARTIES + b',"reason":"","begun":1}')
    assert read_notice(raw, SEAL, sender=P, receiver=D) is Refused.UNREADABLE


@pytest.mark.parametrize("body", [b"C[]", b"Cnull", b"C7", b"C\xff", b"C", b"C" + b"[" * 100_000])
def test_a_sealed_body_that_is_no_notice_is_unreadable(body: bytes) -> None:
    assert read_notice(framed(body), SEAL, sender=D, receiver=P) is Refused.UNREADABLE


@pytest.mark.parametrize("raw", [b"", b"TN2", b"TN1C{}", b"TN3C{}", b"TN2Z{}"])
def test_bytes_of_another_version_or_kind_are_unreadable(raw: bytes) -> None:
    assert read_notice(raw, SEAL, sender=D, receiver=P) is Refused.UNREADABLE


@pytest.mark.parametrize("raw", [b"TN2C", b"TN2C{}", b"TN2C" + bytes(16) + b"{}"])
def test_bytes_without_a_seal_are_forged(raw: bytes) -> None:
    assert read_notice(raw, SEAL, sender=D, receiver=P) is Refused.FORGED
