from router.contract.errors import Blame, LegBroken
from router.contract.ledger import Outcome
from router.core.lifecycle import Client
from router.driver.ending import GONE_STATUS, ending_of
from router.legs.answer import Verdict

BROKEN = Verdict(LegBroken("No.", side=Blame.DECODE), None, True, Blame.DECODE)


def test_x10_a_client_that_left_before_an_error_counts_as_gone_not_as_failed():
    assert ending_of(Client.GONE, 0, BROKEN) == (Outcome.ABANDONED, "client_gone", GONE_STATUS)
    assert ending_of(Client.GONE, 200, None) == (Outcome.ABANDONED, "client_gone", 200)


def test_an_answer_counts_by_its_status():
    assert ending_of(Client.FAILED, 502, BROKEN) == (Outcome.FAILED, "leg_broken", 502)
    assert ending_of(Client.FAILED, 404, BROKEN) == (Outcome.REFUSED, "leg_broken", 404)
    assert ending_of(Client.SERVED, 200, BROKEN) == (Outcome.SERVED, "", 200)
