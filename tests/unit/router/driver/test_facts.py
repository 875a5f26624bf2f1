from router.contract.ledger import Outcome
from router.driver.facts import Facts


def test_a_fresh_request_has_no_facts_and_costs_nothing():
    facts = Facts()
    assert vars(facts) == {}
    assert (facts.placement, facts.attempts, facts.status, facts.outcome) == (None, 0, 0, Outcome.FAILED)
