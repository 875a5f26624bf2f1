import msgspec
import pytest

from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId, transfer_id_of
from router.contract.instance import Mode
from router.contract.ledger import Arrived, Closed, Entry, Noted, Opened, Outcome
from router.contract.rendezvous import Arrival, Ticket
from router.store import keys
from router.store.batch import MAX_ATTEMPTS, build_batches, encodable

REQUEST = RequestId("req-1")
FIRST = transfer_id_of(REQUEST, Attempt(1))
TICKET = Ticket(REQUEST, Attempt(1), Mode.LOCAL, None, Epoch(0), InstanceId("d0"), Epoch(4), 1.5, "router-a")


def test_no_entries_are_no_batches() -> None:
    assert list(build_batches("a", [])) == []


def test_each_kind_of_entry_has_its_line() -> None:
    entries: list[Entry] = [
        Opened(TICKET),
        Arrived(FIRST, Arrival.PREFILLED, "7 blocks"),
        Noted(FIRST, "first_token"),
        Closed(FIRST, Outcome.REFUSED, "429"),
    ]
    (batch,) = build_batches("a", [(float(number), entry) for number, entry in enumerate(entries)])
    assert batch.num_entries == 4
    assert msgspec.msgpack.decode(batch.groups) == [
        [
            "req-1.1",
            1,
            [
                [0.0, "o", "opened", ["local", "", 0, "d0", 4, 1.5, "router-a"], 1500],
                [1.0, "a", "Prefilled", "7 blocks"],
                [2.0, "n", "first_token", ""],
                [3.0, "c", "refused", "429"],
            ],
        ]
    ]


def test_a_batch_names_every_key_that_it_touches() -> None:
    (batch,) = build_batches("a", [(0.0, Noted(FIRST, "x")), (0.0, Noted(transfer_id_of(REQUEST, Attempt(2)), "y"))])
    shard = keys.ledger_shard(REQUEST)
    request = keys.ledger_request("a", shard, REQUEST)
    assert [key.decode() for key in batch.keys] == [
        keys.ledger_open("a", shard),
        keys.ledger_owned("a", shard),
        keys.ledger_tickets("a", shard),
        request,
        request,
    ]


def test_requests_are_parted_by_shard_and_by_size() -> None:
    posted = [(0.0, Noted(TransferId(f"req-{number}.1"), "x")) for number in range(4 * MAX_ATTEMPTS)]
    batches = list(build_batches("a", posted))
    assert sum(batch.num_entries for batch in batches) == len(posted)
    for batch in batches:
        groups = msgspec.msgpack.decode(batch.groups)
        assert len(groups) <= MAX_ATTEMPTS
        assert len(batch.keys) == 3 + len(groups)
        assert len({keys.ledger_shard(RequestId(group[0].rpartition(".")[0])) for group in groups}) == 1


@pytest.mark.parametrize(
    "entry", [Noted(FIRST, "\ud800"), Noted(FIRST, "x", "\ud800"), Noted(TransferId("\ud800"), "x")]
)
def test_text_that_is_no_unicode_cannot_be_written(entry: Entry) -> None:
    assert not encodable(entry)
    with pytest.raises(UnicodeEncodeError):
        list(build_batches("a", [(0.0, entry)]))


def test_other_text_can_be_written() -> None:
    assert encodable(Noted(FIRST, "grüße", "🙂\x00\x1f"))
