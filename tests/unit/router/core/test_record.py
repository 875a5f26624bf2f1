import msgspec

from router.contract.ledger import Outcome
from router.core.record import Earlier, Record


def test_a_record_is_logged_as_one_flat_object():
    line = msgspec.json.decode(msgspec.json.encode(Record(1.5, "req-1", "", "m", "/v1/completions", True)))
    assert line["at"] == 1.5
    assert line["outcome"] == Outcome.FAILED
    assert all(not isinstance(value, (dict, list)) for name, value in line.items() if name != "earlier")


def test_attempts_before_the_last_are_logged_with_it():
    lost = Earlier(1, "p0", "d0", 0.1, 0.2, "leg_broken")
    line = msgspec.json.decode(msgspec.json.encode(Record(1.5, "req-1", "", "m", "/", True, earlier=(lost,))))
    (shown,) = line["earlier"]
    assert shown == {"attempt": 1, "prefill": "p0", "decode": "d0", "sent_s": 0.1, "ended_s": 0.2, "code": "leg_broken"}
