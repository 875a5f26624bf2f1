import re

from router.contract.errors import Draining, Overloaded
from router.contract.instance import Mode
from router.core.admission import Admission, Limits
from router.core.budgets import Budget, Scope
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.hedging import HedgeRules
from router.core.intake import Endpoint, Intake
from router.core.placement import Desk, Rules
from router.driver.conduct import Conduct
from router.driver.exchange import Exchange
from router.driver.router import Router
from tests.support.books import KeptBooks, KeptLedger
from tests.support.clients import KeptClient
from tests.support.instances import decode, prefill


def router(max_requests=10, mode=Mode.PUSH, limits=None) -> tuple[Router, KeptBooks]:
    admission = Admission(max_requests, 0, limits)
    made, books = Router(Desk(Rules(mode=mode)), Burdens(), admission, Conduct()), KeptBooks()
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


async def test_a_bug_costs_its_request_and_leaves_nothing_behind(monkeypatch, caplog):
    made, books = router()
    monkeypatch.setattr(Desk, "choose", lambda *_: 1 / 0)
    client = KeptClient()
    assert isinstance(made.open(client, intake(), made.mint(), 10.0), Exchange)
    assert (client.refused.http_status, client.refused.code) == (500, "internal_error")
    assert "ZeroDivisionError" in client.refused.message and "failed by a bug" in caplog.text
    assert not made.live and made.admission.requests == made.admission.tokens == 0
    made.clerk.work_off()
    assert [record.code for record in books.records] == ["internal_error"]


async def test_the_full_and_the_draining_router_refuse():
    made, _ = router(max_requests=0)
    assert isinstance(made.open(KeptClient(), intake(), made.mint(), 1.0), Overloaded)
    made.drain()
    assert isinstance(made.open(KeptClient(), intake(), made.mint(), 1.0), Draining)


async def test_pools_of_instances_that_are_gone_are_closed():
    made, _ = router()
    made.take_fleet(fold([prefill(), decode()], made.burdens))
    pool = made.pool("http://p0:8000")
    assert made.pool("http://p0:8000") is pool
    made.pool("http://d0:8000")
    made.take_fleet(fold([decode()], made.burdens))
    assert set(made.pools()) == {"http://d0:8000"}


async def test_aborting_ends_every_running_request():
    made, books = router()
    made.take_fleet(fold([prefill(), decode()], made.burdens))
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
    made.attach(type("Ledger", (), {"post": lambda self, entry: posted.append(entry)})(), KeptBooks())
    made.take_fleet(fold([prefill(), decode()], made.burdens))
    running = made.open(KeptClient(), intake(), made.mint(), 10.0)
    made.clerk.work_off()
    made.reopen()
    made.clerk.work_off()
    first, again = (entry.ticket for entry in posted)
    assert first.request_id == again.request_id == running.request_id
    assert 9.0 < again.deadline_for_s <= first.deadline_for_s <= 10.0
    made.abort()


async def test_closing_waits_for_last_words_but_not_for_ever(monkeypatch):
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
    monkeypatch.setattr("router.driver.router.LAST_WORDS_S", 0.02)
    made._pools = {"never": never}
    await made.aclose()
    assert never.closed


def test_take_backs_are_counted_by_what_came_of_them():
    made, _ = router()
    for status in (200, 403, 0, 200):
        made.count_take_back(status)
    assert made.take_backs == {"told": 2, "refused": 1, "failed": 1}


def queueing(num_waiting=3) -> tuple[Router, KeptBooks, KeptLedger]:
    """One request may be in flight, others wait; prefill and decode take legs that nobody dials."""
    made, books = router(max_requests=1, limits=Limits(waiting_requests=num_waiting))
    ledger = KeptLedger()
    made.attach(ledger, books)
    made.take_fleet(fold([prefill(), decode()], made.burdens))
    return made, books, ledger


def enter(made: Router, **fields) -> Exchange:
    exchange = made.open(KeptClient(), Intake(Endpoint.CHAT, b"{}", "m", False, "", **fields), made.mint(), 100.0)
    assert isinstance(exchange, Exchange)
    return exchange


async def test_x4_a_refused_request_sends_no_leg_and_leaves_no_record_in_the_store():
    made, _, ledger = queueing(num_waiting=0)
    enter(made)
    assert isinstance(made.open(KeptClient(), intake(), made.mint(), 1.0), Overloaded)
    made.clerk.work_off()
    assert len(ledger.entries) == 1 and made.pool("http://d0:8000").num_busy == 1
    made.abort()


async def test_who_waits_has_no_leg_and_no_ticket_until_its_turn_comes():
    made, _, ledger = queueing()
    first, second = enter(made), enter(made)
    made.clerk.work_off()
    assert (second.waits, second.attempts, len(ledger.entries), made.admission.waiting) == (True, 0, 1, 1)
    first.on_client_gone()
    assert (second.waits, second.attempts, made.admission.waiting) == (False, 1, 0)
    assert second.queued_s > 0 and second.due_at <= second.total_at
    made.abort()


async def test_a_waiting_client_that_leaves_is_out_of_the_line():
    made, books, ledger = queueing()
    first, second, third = enter(made), enter(made), enter(made)
    second.on_client_gone()
    assert made.admission.waiting == 1 and third.waits
    made.clerk.work_off()
    assert [record.code for record in books.records] == ["client_gone"] and len(ledger.entries) == 1
    first.on_client_gone()
    assert not third.waits
    made.abort()


async def test_who_has_waited_for_too_long_is_told_so():
    made, books, _ = queueing()
    enter(made)
    waiting = enter(made)
    assert waiting.due_at == waiting.arrived_at + made.deadlines.queue_s
    waiting.on_due(waiting.due_at)
    error = waiting.client.refused
    assert (error.code, error.http_status) == ("queue_timeout", 503) and made.admission.waiting == 0
    made.clerk.work_off()
    assert books.records[0].attempts == 0
    made.abort()


async def test_many_that_fail_at_once_let_the_whole_line_in():
    made, _, _ = queueing(num_waiting=3000)
    first = enter(made)
    others = [enter(made) for _ in range(3000)]
    made.take_fleet(fold([], made.burdens))
    first.on_client_gone()
    assert [one.client.refused.code for one in others] == ["no_prefill"] * 3000
    assert not made.live and made.admission.requests == made.admission.waiting == 0


async def test_a_better_priority_takes_the_last_place():
    made, _, _ = queueing(num_waiting=1)
    enter(made)
    lost, better = enter(made, priority=5), enter(made, priority=1)
    assert lost.client.refused.code == "overloaded" and better.waits
    made.abort()
    assert made.admission.waiting == 0 and not made.live


async def test_a_larger_budget_lets_those_in_who_wait():
    made, _, _ = queueing()
    enter(made)
    waiting = enter(made)
    made.set_budget(Scope.TOTAL, "", Budget(2))
    assert not waiting.waits
    made.set_budget(Scope.CALLER, "", Budget(2))
    made.abort()
    assert made.admission.requests == 0


def test_retries_and_hedges_are_a_share_of_requests_not_of_attempts():
    conduct = Conduct(retry_share=0.2, retry_floor_per_s=0.0, hedge=HedgeRules(0.1))
    made = Router(Desk(Rules()), Burdens(), Admission(10, 0), conduct)
    num_retries = num_hedges = 0
    for _ in range(200):
        made.place(intake(), frozenset())
        if made.may_hedge():
            made.place(intake(), frozenset())
            num_hedges += 1
        if made.may_retry():
            made.place(intake(), frozenset())
            num_retries += 1
    assert 38 <= num_retries <= 40
    assert 18 <= num_hedges <= 20
