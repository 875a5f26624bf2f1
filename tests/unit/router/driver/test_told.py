from router.contract.instance import Mode
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.placement import Placement
from router.driver.facts import Facts
from router.driver.told import told_headers
from tests.support.instances import decode, prefill


def facts(mode=Mode.PUSH, name="d0"):
    members = {m.instance.instance_id: m for m in fold([prefill(), decode(name)], Burdens()).members}
    made = Facts()
    made.placement = Placement(mode, None if mode is Mode.LOCAL else members["p0"], members[name], "configured")
    made.attempts, made.queued_s, made.sent_s, made.prefilled_s = 2, 0.5, 0.6, 0.7004
    return made


def test_all_that_is_known_is_told():
    headers = [(b"server-timing", b"seats;dur=12.5, kv;dur=300")]
    assert dict(told_headers(facts(), headers, 1.25)) == {
        b"x-tandem-mode": b"push",
        b"x-tandem-reason": b"configured",
        b"x-tandem-prefill": b"p0",
        b"x-tandem-decode": b"d0",
        b"x-tandem-attempt": b"2",
        b"server-timing": b"queue;dur=500.0, prefill;dur=100.4, seats;dur=12.5, kv;dur=300.0, first;dur=1250.0",
    }


def test_local_has_no_prefill_and_an_unplaced_request_nothing():
    made = facts(Mode.LOCAL)
    made.prefilled_s = 0.0
    told = dict(told_headers(made, [], 1.0))
    assert b"x-tandem-prefill" not in told and told[b"server-timing"] == b"queue;dur=500.0, first;dur=1000.0"
    assert told_headers(Facts(), [], 1.0) == []


def test_a_name_cannot_end_its_header():
    assert dict(told_headers(facts(name="d\r\nx: 1\x00\u00e9"), [], 1.0))[b"x-tandem-decode"] == b"d??x: 1??"
