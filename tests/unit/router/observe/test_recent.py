from router.contract.ledger import Outcome
from router.core.record import Record
from router.observe.recent import Recent


def record(number: int, outcome: Outcome = Outcome.SERVED) -> Record:
    return Record(float(number), f"req-{number}", f"mine-{number}", "m", "/", True, outcome=outcome)


def test_the_newest_come_first_and_the_oldest_go():
    recent = Recent(kept=3)
    for number in range(5):
        recent.add(record(number))
    assert [one.request_id for one in recent.newest(9)] == ["req-4", "req-3", "req-2"]
    assert len(recent.newest(1)) == 1


def test_good_answers_do_not_push_out_bad_ones():
    recent = Recent(kept=2)
    recent.add(record(0, Outcome.FAILED))
    for number in range(1, 9):
        recent.add(record(number))
    assert [one.request_id for one in recent.newest(9)] == ["req-8", "req-7", "req-0"]
    assert [one.request_id for one in recent.newest(9, failed_only=True)] == ["req-0"]


def test_one_is_found_by_either_of_its_ids():
    recent = Recent()
    recent.add(record(1))
    recent.add(record(2))
    assert recent.find("req-1").request_id == recent.find("mine-1").request_id == "req-1"
    assert recent.find("req-9") is None and recent.find("") is None
