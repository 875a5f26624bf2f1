import msgspec

from router.contract.ledger import Outcome
from router.core.record import Record


def test_a_record_is_logged_as_one_flat_object():
    line = msgspec.json.decode(msgspec.json.encode(Record(1.5, "req-1", "", "m", "/v1/completions", True)))
    assert line["at"] == 1.5
    assert line["outcome"] == Outcome.FAILED
    assert all(not isinstance(value, (dict, list)) for value in line.values())
