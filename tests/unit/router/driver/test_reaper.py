import asyncio
from dataclasses import dataclass, field, replace

import pytest

from router.contract.errors import BadSettings, StoreDown
from router.contract.ids import Epoch, InstanceId, TransferId
from router.contract.ledger import Closed, OpenTicket, Outcome
from router.contract.seal import CANCEL, Seal
from router.driver import reaper as module
from router.driver.reaper import CALLS_AT_ONCE, Reaper
from tests.support.books import KeptLedger
from tests.support.instances import decode, fleet, prefill
from tests.support.tasks import outlives_errors

P, D = "http://p0:8000", "http://d0:8000"
SEAL = Seal("the key")


@dataclass
class Answering:
    """A connection whose engine answers each call with `status`, or never when that is 0."""

    status: int
    calls: list[bytes]
    uses: int = 1
    answered: bool = True

    def send(self, leg, request):
        self.calls.append(request)
        if self.status:
            asyncio.get_running_loop().call_soon(leg.on_answer, self, b"{}", True)

    def abort(self):
        pass


@dataclass
class Pool:
    own_lines: bytes = b"host: h:1\r\n"
    status: int = 200
    calls: list[bytes] = field(default_factory=list)

    def take(self):
        return Answering(self.status, self.calls)


class Router:
    """As much of one as a reaper needs: two engines that can be told."""

    def __init__(self):
        seen = [replace(one, instance=telling(one.instance)) for one in (prefill(epoch=3), decode(epoch=4))]
        self.fleet = fleet(*seen)
        self.conduct = type("Conduct", (), {"owner": "me", "seal": SEAL})
        self.pools = {P: Pool(), D: Pool()}
        self.num_reopened = 0

    def reopen(self):
        self.num_reopened += 1

    def pool(self, url):
        return self.pools[url]


def telling(instance):
    return replace(instance, kv=replace(instance.kv, takes_back=True))


@dataclass
class Leases:
    left_s: dict[str, float]
    remembered: bool = True


@dataclass
class Claims:
    tickets: tuple = ()
    owners: frozenset = frozenset()
    more: bool = False


class Store:
    """Gives the prepared claims, one after the other."""

    def __init__(self, *claims, left_s=None):
        self.claims, self.left_s = list(claims), left_s or {"me": 10.0, "a": -1.0}
        self.renewed, self.asked, self.down, self.remembers = [], [], False, True

    async def renew(self, owner, lease_for_s):
        if self.down:
            raise StoreDown("It is away.")
        self.renewed.append((owner, lease_for_s))
        return Leases(self.left_s, self.remembers)

    async def claim(self, gone, claim_for_s):
        assert claim_for_s > 0
        if self.down:
            raise StoreDown("It is away.")
        self.asked.append(set(gone))
        return self.claims.pop(0) if self.claims else Claims()


def ticket(number: int, owner: str = "a", overdue_s: float = -20.0) -> OpenTicket:
    name = TransferId(f"req-{number}.1")
    return OpenTicket(name, owner, InstanceId("p0"), Epoch(3), InstanceId("d0"), Epoch(4), overdue_s)


@pytest.fixture
def clock(monkeypatch):
    """Monotonic seconds, moved by the test."""
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


async def reaping(clock, *claims, router=None):
    router, store, ledger = router or Router(), Store(*claims), KeptLedger()
    reaper = Reaper(router, store, ledger, 10.0)
    await watch(reaper, clock)
    await reaper.reap()
    return reaper, router, store, ledger


async def watch(reaper, clock):
    """One lease goes by, with looks."""
    for _ in range(4):
        await reaper.look()
        clock[0] += 2.5
    await reaper.look()


async def test_both_engines_are_told_with_the_seal_and_the_ticket_is_closed(clock):
    reaper, router, store, ledger = await reaping(clock, Claims((ticket(1),)))
    assert (store.renewed, store.asked) == ([("me", 10.0)] * 5, [{"a"}])
    for url in (P, D):
        (call,) = router.pools[url].calls
        head, _, body = call.partition(b"\r\n\r\n")
        assert body == b'{"transfer_id":"req-1.1","reason":"owner_gone"}'
        assert b"X-Tandem-Seal: " + SEAL.header(CANCEL, body).encode() in head
    assert ledger.entries == [Closed(TransferId("req-1.1"), Outcome.ABANDONED, "owner_gone")]
    assert (reaper.reaped, reaper.calls, reaper.held) == ({"owner_gone": 1}, {"told": 2}, 0)


async def test_a_ticket_whose_engine_refuses_or_is_silent_stays_open_until_it_is_far_too_late(clock, monkeypatch):
    monkeypatch.setattr(module, "CALL_S", 0.2)
    for status, result in ((500, "failed"), (403, "refused"), (0, "failed")):
        router = Router()
        router.pools[D].status = status
        reaper, _, _, ledger = await reaping(clock, Claims((ticket(1), ticket(2, "b", 99.0))), router=router)
        assert [(entry.transfer_id, entry.note) for entry in ledger.entries] == [
            ("req-2.1", "overdue, not every engine could be told")
        ]
        assert (reaper.held, reaper.calls) == (1, {"told": 2, result: 2})


async def test_an_engine_that_fails_is_left_alone_and_costs_only_its_own_tickets(clock):
    router = Router()
    router.pools[D].status = 500
    many = tuple(ticket(number) for number in range(3 * CALLS_AT_ONCE))
    elsewhere = tuple(replace(one, decode=InstanceId("d9")) for one in many)
    reaper, _, _, ledger = await reaping(clock, Claims(many, more=True), Claims(elsewhere), router=router)
    assert len(router.pools[D].calls) == CALLS_AT_ONCE
    assert len(router.pools[P].calls) == 6 * CALLS_AT_ONCE
    assert (len(ledger.entries), reaper.held) == (len(many), len(many))


async def test_an_engine_with_an_impossible_url_harms_nobody_else(clock):
    router = Router()
    usual = router.pool

    def pool(url):
        if url == D:
            raise BadSettings("The engine URL must look like http://host:port.")
        return usual(url)

    router.pool = pool
    reaper, _, _, ledger = await reaping(clock, Claims((ticket(1),)), router=router)
    assert (reaper.calls, ledger.entries, reaper.held) == ({"told": 1, "failed": 1}, [], 1)


async def test_claiming_goes_on_while_there_is_more(clock):
    claims = [Claims((ticket(number),), more=number < 3) for number in range(4)]
    _, _, store, ledger = await reaping(clock, *claims)
    assert (len(store.asked), len(ledger.entries)) == (4, 4)


async def test_nobody_is_gone_before_one_whole_lease_has_been_watched(clock):
    store = Store()
    reaper = Reaper(Router(), store, KeptLedger(), 10.0)
    await reaper.look()
    await reaper.reap()
    await watch(reaper, clock)
    await reaper.reap()
    store.down = True
    await reaper.look()
    await reaper.reap()
    store.down = False
    await reaper.look()
    await reaper.reap()
    await watch(reaper, clock)
    await reaper.reap()
    assert store.asked == [set(), {"a"}, set(), {"a"}]


async def test_a_lease_that_the_store_has_lost_counts_when_it_stays_away(clock):
    found = Claims(owners=frozenset({"lost"}))
    store = Store(found, found, left_s={"me": 10.0})
    reaper = Reaper(Router(), store, KeptLedger(), 10.0)
    await reaper.look()
    await reaper.reap()
    await watch(reaper, clock)
    await reaper.reap()
    assert store.asked == [set(), {"lost"}]


async def test_it_runs_until_it_is_cancelled_and_a_slow_engine_does_not_delay_the_lease(monkeypatch):
    monkeypatch.setattr(module, "LEAST_PAUSE_S", 0.001)
    router, store = Router(), Store(Claims((ticket(1),)))
    router.pools[D].status = 0
    reaper = Reaper(router, store, KeptLedger(), 0.003)
    running = asyncio.create_task(reaper.run())
    while len(store.renewed) < 20:
        await asyncio.sleep(0.001)
    assert (reaper.held, len(store.asked)) == (1, 1), "it is still telling"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


async def test_resigning_ends_the_lease_and_a_store_that_is_away_is_no_matter():
    store = Store()
    reaper = Reaper(Router(), store, KeptLedger(), 10.0)
    await reaper.resign()
    assert store.renewed == [("me", 0.0)]
    store.down = True
    await reaper.resign()


async def test_resigning_waits_for_a_silent_store_only_a_moment(monkeypatch):
    monkeypatch.setattr(module, "RESIGN_S", 0.01)
    store = Store()
    answer = asyncio.Event()

    async def renew(owner, lease_for_s):
        await answer.wait()

    store.renew = renew
    await Reaper(Router(), store, KeptLedger(), 10.0).resign()
    assert not answer.is_set()


async def test_a_store_that_has_forgotten_us_is_told_of_our_tickets_again_and_not_believed_at_once(clock):
    router, store = Router(), Store()
    reaper = Reaper(router, store, KeptLedger(), 10.0)
    await watch(reaper, clock)
    await reaper.reap()
    store.remembers = False
    await reaper.look()
    await reaper.reap()
    assert (router.num_reopened, store.asked) == (1, [{"a"}, set()])


async def test_a_first_lease_cannot_be_remembered():
    router, store = Router(), Store()
    reaper = Reaper(router, store, KeptLedger(), 10.0)
    store.remembers = False
    await reaper.look()
    assert router.num_reopened == 0, "it cannot remember a first lease"
    store.remembers = True
    await reaper.look()
    assert router.num_reopened == 0
    store.remembers = False
    await reaper.look()
    assert router.num_reopened == 1


async def test_a_value_that_cannot_be_read_does_not_end_the_task(monkeypatch):
    monkeypatch.setattr(module, "LEAST_PAUSE_S", 0.001)
    store = Store()
    await outlives_errors(monkeypatch, store, "renew", Reaper(Router(), store, KeptLedger(), 0.003).run())
