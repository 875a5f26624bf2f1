import json

from router.legs.pool import LegPool, PoolLimits
from router.legs.take_back import TakeBack, take_back_body


def test_the_body_names_the_transfer():
    assert json.loads(take_back_body(b"req-1.1"))["transfer_id"] == "req-1.1"


def test_nobody_hears_how_it_ended():
    call = TakeBack(LegPool("http://h:1", PoolLimits()))
    call.on_answer(None, b"", True)
    call.on_unreachable("refused")
    call.owner.on_prefill_answer(200, [], b"")
    call.owner.on_decode_bytes(call, b"", ended=True)
