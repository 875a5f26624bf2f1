import pytest

from router.core.burden import Burden
from router.driver.leftover import Leftover


class Leg:
    owner = None
    cancelled = False

    def cancel(self):
        self.cancelled = True


def left(on_failed=None):
    leg, burden, among = Leg(), Burden(), set()
    burden.take(7)
    leftover = Leftover(leg, burden, 7, 100.0, on_failed)
    leftover.watch(among)
    assert leg.owner is leftover and among == {leftover}
    return leftover, leg, burden, among


@pytest.mark.parametrize("end", ["answer", "failure", "time"])
def test_it_weighs_until_it_ends_and_no_longer(end):
    leftover, leg, burden, among = left()
    leftover.on_decode_bytes(leg, b"", ended=True)
    assert burden.requests == 1
    if end == "answer":
        leftover.on_prefill_answer(200, [], b"")
    elif end == "failure":
        leftover.on_leg_failed(leg, None)
    else:
        leftover.on_due(101.0)
    assert (burden.requests, burden.tokens, among) == (0, 0, set())
    assert leg.cancelled is (end == "time")
    leftover.on_prefill_answer(200, [], b"")
    assert burden.requests == 0, "it is put down once"


@pytest.mark.parametrize("end", ["answer", "refusal", "failure", "time"])
def test_a_prefill_that_does_not_do_its_part_is_told_of_once(end):
    failed = []
    leftover, leg, _, among = left(lambda: failed.append(len(among)))
    if end == "failure":
        leftover.on_leg_failed(leg, None)
    elif end == "time":
        leftover.on_due(101.0)
    else:
        leftover.on_prefill_answer(200 if end == "answer" else 500, [], b"")
    leftover.on_leg_failed(leg, None)
    assert failed == ([] if end == "answer" else [0])
