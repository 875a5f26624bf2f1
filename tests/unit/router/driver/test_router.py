import re

from router.contract.errors import Draining, Overloaded
from router.contract.instance import Mode
from router.core.admission import Admission
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.intake import Endpoint, Intake
from router.core.placement import Desk, Rules
from router.driver.exchange import Exchange
from router.driver.router import Conduct, Router
from tests.support.clients import KeptClient
from tests.support.instances import decode, prefill


class Books:
    def __init__(self):
        self.records = []

    def fold(self, record, gaps=None):
        self.records.append(record)

    def count_retry(self, reason):
        pass


def router(max_requests=10, mode=Mode.PUSH) -> tuple[Router, Books]:
    made, books = Router(Desk(Rules(mode=mode)), Burdens(), Admission(max_requests, 0), Conduct()), Books()
    made.attach(None, books)
    return made, books


def intake() -> Intake:
    return Intake(Endpoint.CHAT, b'{"model":"m"}', "m", False, "")


def test_ids_are_new_and_fit_the_contract():
    made, _ = router()
    ids = [made.mint() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"req-[0-9a-f]{32}", request_id) for request_id in ids)


async def test_a_request_that_finds_nobody_is_answered_counted_and_forgotten():
    made, books = router()
    client = KeptClient()
    exchange = made.open(client, intake(), made.mint(), 10.0)
    assert isinstance(exchange, Exchange)
    assert client.refused.code == "no_prefill"
    made.clerk.work_off()
    assert books.records[0].code == "no_prefill"
    assert not made.live and made.admission.requests == 0


async def test_the_full_and_the_draining_router_refuse():
    made, _ = router(max_requests=0)
    assert isinstance(made.open(KeptClient(), intake(), made.mint(), 1.0), Overloaded)
    made.drain()
    assert isinstance(made.open(KeptClient(), intake(), made.mint(), 1.0), Draining)


async def test_pools_of_instances_that_are_gone_are_closed():
    made, _ = router()
    made.take_fleet(fold([prefill(), decode()], made.burdens, 0.0))
    pool = made.pool("http://p0:8000")
    assert made.pool("http://p0:8000") is pool
    made.pool("http://d0:8000")
    made.take_fleet(fold([decode()], made.burdens, 0.0))
    assert set(made.pools()) == {"http://d0:8000"}


async def test_aborting_ends_every_running_request():
    made, books = router()
    made.take_fleet(fold([prefill(), decode()], made.burdens, 0.0))
    clients = [KeptClient() for _ in range(3)]
    for client in clients:
        made.open(client, intake(), made.mint(), 10.0)
    assert len(made.live) == 3
    made.abort()
    assert [client.refused.code for client in clients] == ["draining"] * 3
    assert not made.live and made.admission.requests == 0
    assert all(member.burden.requests == 0 for member in made.fleet.members)
    assert len(books.records) == 3


async def test_running_requests_can_be_opened_in_the_ledger_again():
    made, _ = router()
    posted = []
    made.attach(type("Ledger", (), {"post": lambda self, entry: posted.append(entry)})(), Books())
    made.take_fleet(fold([prefill(), decode()], made.burdens, 0.0))
    running = made.open(KeptClient(), intake(), made.mint(), 10.0)
    made.clerk.work_off()
    made.reopen()
    made.clerk.work_off()
    first, again = (entry.ticket for entry in posted)
    assert first.request_id == again.request_id == running.request_id
    assert 9.0 < again.deadline_for_s <= first.deadline_for_s <= 10.0
    made.abort()


async def test_closing_waits_for_last_words_but_not_for_ever(monkeypatch):
    monkeypatch.setattr("router.driver.router.LAST_WORDS_S", 0.02)
    made, _ = router()

    class Pool:
        """Busy for two looks, or for ever."""

        def __init__(self, looks):
            self.looks, self.closed = looks, False

        @property
        def num_busy(self):
            self.looks -= 1
            return max(self.looks, 0)

        def close(self):
            self.closed = True

    soon, never = Pool(2), Pool(1_000_000)
    made._pools = {"soon": soon}
    await made.aclose()
    assert (soon.closed, soon.looks) == (True, 0)
    made._pools = {"never": never}
    await made.aclose()
    assert never.closed


def test_take_backs_are_counted_by_what_came_of_them():
    made, _ = router()
    for status in (200, 403, 0, 200):
        made.count_take_back(status)
    assert made.take_backs == {"told": 2, "refused": 1, "failed": 1}
