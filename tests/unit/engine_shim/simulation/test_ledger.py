"""The simulated ledger's tickets; that it walks as Redis does is shown in tests/conformance/join."""

from engine_shim.simulation.ledger import Ledger
from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId
from router.contract.instance import Mode
from router.contract.ledger import Arrived, Closed, Opened, Outcome
from router.contract.rendezvous import Arrival, JoinState, Ticket

P, D = InstanceId("p1"), InstanceId("d1")


def opened(request: str, owner: str = "r1", deadline_for_s: float = 10.0) -> Opened:
    return Opened(Ticket(RequestId(request), Attempt(1), Mode.PUSH, P, Epoch(1), D, Epoch(1), deadline_for_s, owner))


def claimed(ledger: Ledger, gone: tuple[str, ...], now: float) -> list[TransferId]:
    return [ticket.transfer_id for ticket in ledger.claim(gone, now, 3.0)]


def test_a_ticket_is_claimed_when_its_owner_is_gone_and_by_one_replica_at_a_time() -> None:
    ledger = Ledger()
    ledger.put(opened("q1"), 0.0, 5.0)
    assert claimed(ledger, (), 1.0) == []
    assert claimed(ledger, ("r1",), 1.0) == ["q1.1"]
    assert claimed(ledger, ("r1",), 2.0) == []
    assert claimed(ledger, ("r1",), 4.0) == ["q1.1"]


def test_a_ticket_is_claimed_when_it_is_overdue_whoever_owns_it() -> None:
    ledger = Ledger()
    ledger.put(opened("q1"), 0.0, 5.0)
    assert claimed(ledger, (), 14.9) == []
    assert claimed(ledger, (), 15.0) == ["q1.1"]


def test_the_first_outcome_stands_and_a_closed_ticket_is_not_opened_again() -> None:
    ledger = Ledger()
    ledger.put(Closed(TransferId("q1.1"), Outcome.SERVED), 0.0, 5.0)
    ledger.put(opened("q1"), 0.0, 5.0)
    ledger.put(Closed(TransferId("q1.1"), Outcome.FAILED), 0.0, 5.0)
    assert ledger.opened == {}
    assert ledger.attempts[TransferId("q1.1")].outcome is Outcome.SERVED


def test_a_report_before_its_match_is_held() -> None:
    ledger = Ledger()
    for arrival in (Arrival.REGISTERED, Arrival.WRITER_DONE, Arrival.PREFILLED):
        ledger.put(Arrived(TransferId("q1.1"), arrival), 0.0, 5.0)
    attempt = ledger.attempts[TransferId("q1.1")]
    assert (attempt.state, attempt.writes) == (JoinState.LANDED, 1)


def test_an_older_attempt_orders_no_write() -> None:
    ledger = Ledger()
    ledger.put(Arrived(TransferId("q1.1"), Arrival.REGISTERED), 0.0, 5.0)
    ledger.put(Arrived(TransferId("q1.2"), Arrival.REGISTERED), 0.0, 5.0)
    ledger.put(Arrived(TransferId("q1.1"), Arrival.PREFILLED), 0.0, 5.0)
    assert ledger.attempts[TransferId("q1.1")].writes == 0
    assert ledger.fenced == 1
