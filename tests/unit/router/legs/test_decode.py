import json

import pytest

from router.legs.decode import DecodeLeg, decode_body
from router.legs.pool import LegPool, PoolLimits


@pytest.mark.parametrize(
    "raw", [b'{"model":"m"}', b'{"model":"m"} \r\n', b'{ "a": {"b": "}"} , "c":"\xc3\xa9}"\n}\n\n']
)
def test_the_hand_over_is_the_last_member_and_all_else_stays(raw):
    spliced = decode_body(raw, b'{"x":1}')
    assert spliced.startswith(raw[: raw.rindex(b"}")])
    assert json.loads(spliced) == json.loads(raw) | {"kv_transfer_params": {"x": 1}}


def test_the_hand_over_wins_over_an_earlier_one():
    assert json.loads(decode_body(b'{"kv_transfer_params":1}', b"2")) == {"kv_transfer_params": 2}


class Owner:
    def __init__(self):
        self.heard = []

    def on_decode_bytes(self, leg, body, *, ended):
        self.heard.append((leg.status, leg.headers, body, ended))


class Line:
    status, headers = 200, [(b"a", b"b")]


def test_every_piece_is_reported_as_it_comes():
    owner, line = Owner(), Line()
    leg = DecodeLeg(owner, LegPool("http://h:1", PoolLimits()))
    leg.connection = line
    leg.on_answer(line, b"one", False)
    assert leg.connection is line
    leg.on_answer(line, b"two", True)
    assert leg.connection is None
    assert owner.heard == [(200, [(b"a", b"b")], b"one", False), (200, [(b"a", b"b")], b"two", True)]
