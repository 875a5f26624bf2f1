from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId
from router.contract.instance import Mode
from router.contract.ledger import Arrived, Closed, Noted, Opened, Outcome, StoryLine
from router.contract.rendezvous import Arrival, Ticket


def test_every_entry_names_its_attempt() -> None:
    ticket = Ticket(
        RequestId("req-1"), Attempt(2), Mode.PULL, None, Epoch(0), InstanceId("d0"), Epoch(1), 30.0, "router-a"
    )
    transfer_id = TransferId("req-1.2")
    entries = (
        Opened(ticket),
        Arrived(transfer_id, Arrival.PREFILLED),
        Noted(transfer_id, "first_token"),
        Closed(transfer_id, Outcome.SERVED),
    )
    assert {entry.transfer_id for entry in entries} == {transfer_id}


def test_a_line_that_touches_no_rendezvous_has_no_step() -> None:
    line = StoryLine(1.5, Attempt(1), "router-a", "first_token", "")
    assert (line.before, line.after, line.effects) == (None, None, ())
