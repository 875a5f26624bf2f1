import json

import pytest

from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.notices import (
    Cancelled,
    Granted,
    Moved,
    Notice,
    Registered,
    Stopped,
    decode_notice,
    encode_notice,
)
from router.contract.rendezvous import PrefillDone, Registration

T, D, P = TransferId("req-1.1"), EngineId("d0@1"), EngineId("p0@1")

# The bytes on the wire: what one release sends, another must read.
WIRE: dict[bytes, Notice] = {
    b'TN1R{"registration":{"transfer_id":"req-1.1","mode":"push","decode_engine_id":"d0@1",'
    b'"prefill_engine_id":"p0@1","seats":[4,5],"first_token":0,"num_tokens":31}}': Registered(
        Registration(T, Mode.PUSH, D, P, (4, 5), 0, 31)
    ),
    b'TN1G{"prefill_engine_id":"p0@1","done":{"transfer_id":"req-1.1","blocks":[7],"num_tokens":16}}': Granted(
        P, PrefillDone(T, (7,), 16)
    ),
    b'TN1M{"transfer_id":"req-1.1","decode_engine_id":"d0@1","error":""}': Moved(T, D, ""),
    b'TN1C{"transfer_id":"req-1.1","decode_engine_id":"d0@1"}': Cancelled(T, D),
    b'TN1X{"transfer_id":"req-1.1","prefill_engine_id":"p0@1","reason":"cancelled"}': Stopped(T, P, "cancelled"),
}


@pytest.mark.parametrize(("raw", "notice"), WIRE.items())
def test_the_wire_form_of_each_notice(raw: bytes, notice: Notice) -> None:
    assert encode_notice(notice) == raw
    assert decode_notice(raw) == notice


def test_unknown_fields_are_ignored() -> None:
    assert decode_notice(b'TN1C{"transfer_id":"req-1.1","decode_engine_id":"d0@1","why":[1]}') == Cancelled(T, D)


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
def test_a_registration_with_a_bad_field_is_no_notice(change: dict[str, object]) -> None:
    body = json.loads(next(iter(WIRE))[4:])
    body["registration"].update(change)
    assert decode_notice(b"TN1R" + json.dumps(body).encode()) is None


@pytest.mark.parametrize("missing", ["transfer_id", "mode", "seats", "first_token", "num_tokens", "prefill_engine_id"])
def test_a_registration_with_a_missing_field_is_no_notice(missing: str) -> None:
    body = json.loads(next(iter(WIRE))[4:])
    del body["registration"][missing]
    assert decode_notice(b"TN1R" + json.dumps(body).encode()) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"TN1",
        b"TN1R",
        b"TN1C[]",
        b"TN1Cnull",
        b"TN1C7",
        b"TN2C{}",
        b"TN1Z{}",
        b"TN1C\xff",
        b"TN1C" + b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_notice_are_none(raw: bytes) -> None:
    assert decode_notice(raw) is None
