"""Troubles that others have had with Redis, by their names in our list of cases (D4 is in `test_sentinel.py`)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from redis.asyncio import Redis

from router.contract.errors import StoreDown
from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId, transfer_id_of
from router.contract.instance import Load, Mode
from router.contract.ledger import Closed, Noted, Opened, Outcome
from router.contract.rendezvous import Ticket
from router.core.burden import Burdens
from router.driver.watch import FleetWatch
from router.store.connection import MAX_CONNECTIONS, connect
from router.store.embedded import EmbeddedStore
from router.store.fleet import FleetStore
from router.store.recovery import Recovery
from tests.support.cut_proxy import CutProxy
from tests.support.fleets import an_instance
from tests.support.read_ledger import ReadLedger

pytestmark = pytest.mark.needs("redis")

P0 = InstanceId("p0")


@pytest.fixture
async def proxy(redis_url: str, tmp_path: Path) -> AsyncIterator[CutProxy]:
    """Stands between a test's client and the shared server."""
    async with CutProxy(tmp_path / "proxy.sock", redis_url) as proxy:
        yield proxy
        proxy.open.set()


def ticket(number: int, owner: str = "router-a", deadline_for_s: float = 600.0) -> Ticket:
    epoch = Epoch(1)
    return Ticket(
        RequestId(f"req-{number}"), Attempt(1), Mode.PUSH, P0, epoch, InstanceId("d0"), epoch, deadline_for_s, owner
    )


async def test_d1_no_caller_reads_the_answer_of_one_that_was_cancelled(proxy: CutProxy, namespace: str) -> None:
    """redis/redis-py issues 2624 and 2665: a cancelled call left the connection one answer behind."""
    client = connect(proxy.url)
    fleet = FleetStore(client, namespace)
    writer = ReadLedger(client, namespace, "router-a")
    for number in range(40):
        writer.post(Noted(TransferId(f"req-{number}.1"), f"stage-{number}"))
    await writer.flush()
    proxy.delay_s = 0.005

    async def read(number: int) -> bool:
        (line,) = await writer.story(RequestId(f"req-{number % 40}"))
        return line.stage == f"stage-{number % 40}"

    async def cancelled(number: int) -> None:
        call = asyncio.create_task(fleet.snapshot() if number % 2 else fleet.claim_epoch(InstanceId(f"i{number}")))
        # At each of the points where it may be: waiting for a connection, sending, waiting for the answer.
        for _ in range(number % 7):
            await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    calls = [one for number in range(200) for one in (read(number), cancelled(number))]
    answers = await asyncio.gather(*calls)
    assert [answer for answer in answers if answer is not None] == [True] * 200
    await client.aclose()


async def test_d2_what_was_given_to_a_reader_who_has_gone_is_given_again(proxy: CutProxy, namespace: str) -> None:
    """redis/go-redis issue 697: a destructive pop loses what it takes for a client that has just gone.

    Nothing of ours is read by popping: a Story stays until its TTL, and a claimed ticket until it is closed.
    """
    client = connect(proxy.url, timeout_s=0.5)
    ledger, recovery = ReadLedger(client, namespace, "router-a"), Recovery(client, namespace)
    ledger.post(Opened(ticket(1)))
    await ledger.flush()
    proxy.swallow = True
    with pytest.raises(StoreDown):
        await ledger.story(RequestId("req-1"))
    with pytest.raises(StoreDown):
        await recovery.claim({"router-a"}, claim_for_s=0.05)
    proxy.swallow = False
    assert [line.stage for line in await ledger.story(RequestId("req-1"))] == ["opened"]
    assert await ledger.open_tickets() == 1
    while not (claims := await recovery.claim({"router-a"})).tickets:
        await asyncio.sleep(0.01)
    assert [one.transfer_id for one in claims.tickets] == ["req-1.1"]
    await client.aclose()


async def test_d5_there_is_no_subscription_to_die_and_polling_comes_back(
    proxy: CutProxy, redis: Redis, namespace: str
) -> None:
    """redis/redis-py issue 2417: a dead subscription is silent for ever, and health says fine.

    Fleet and leases are polled, and each poll reads the whole state. So what was missed is seen by the next one that
    succeeds, and one that fails is an error, which readiness tells.
    """
    client = connect(proxy.url, timeout_s=0.1)
    fleet = FleetStore(redis, namespace)
    router = SimpleNamespace(burdens=Burdens(), take_fleet=lambda taken: seen.append(len(taken.members)))
    seen: list[int] = []
    watch = FleetWatch(router, [FleetStore(client, namespace)], 0.01)  # type: ignore[arg-type]
    watching = asyncio.create_task(watch.run())
    await fleet.register(an_instance("p0"), 60.0)
    await until_last(seen, 1)
    proxy.open.clear()
    while not watch.degraded:
        await asyncio.sleep(0.005)
    await fleet.register(an_instance("p1"), 60.0)
    proxy.open.set()
    await until_last(seen, 2)
    assert not watch.degraded
    await redis.client_kill_filter(_id=str(await client.client_id()))
    await fleet.register(an_instance("p2"), 60.0)
    await until_last(seen, 3)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await client.aclose()


async def until_last(seen: list[int], wanted: int) -> None:
    while not seen or seen[-1] != wanted:
        await asyncio.sleep(0.005)


async def test_d6_a_burst_waits_for_its_turn_instead_of_failing(proxy: CutProxy, namespace: str) -> None:
    """redis/redis-py issue 3135: a pool that does not wait answers bursts with `too many connections`."""
    client = connect(proxy.url, timeout_s=30.0)
    fleet = FleetStore(client, namespace)
    await fleet.register(an_instance(), 60.0)
    proxy.delay_s = 0.02
    snapshots = await asyncio.gather(*(fleet.snapshot() for _ in range(200)))
    assert {len(records) for records in snapshots} == {1}
    assert proxy.accepted <= MAX_CONNECTIONS
    await client.aclose()


async def test_d6_who_waits_for_too_long_is_told_that_the_store_is_down(proxy: CutProxy, namespace: str) -> None:
    client = connect(proxy.url, timeout_s=0.2)
    fleet = FleetStore(client, namespace)
    proxy.open.clear()
    answers = await asyncio.gather(*(fleet.snapshot() for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreDown}
    assert {answer.http_status for answer in answers if isinstance(answer, StoreDown)} == {503}
    proxy.open.set()
    assert await fleet.snapshot() == ()
    await client.aclose()


async def test_d12_everything_that_a_router_does_shares_one_small_pool(proxy: CutProxy, namespace: str) -> None:
    """redis/redis-py issue 3433: a pool made in the request path, thousands of sockets in TIME-WAIT."""
    client = connect(proxy.url)
    fleet, recovery = FleetStore(client, namespace), Recovery(client, namespace)
    ledger = ReadLedger(client, namespace, "router-a")
    for turn in range(50):
        for number in range(20):
            ledger.post(Opened(ticket(20 * turn + number)))
        await asyncio.gather(ledger.flush(), recovery.renew("router-a", 10.0), recovery.claim({"nobody"}))
        await asyncio.gather(*(fleet.snapshot() for _ in range(10)))
    assert await ledger.open_tickets() == 1000
    assert proxy.accepted <= MAX_CONNECTIONS
    await client.aclose()


async def next_second(client: Redis) -> None:
    """Waits for the store's next second: its LRU clock ticks once in each, and keys of one second look equally old."""
    second, _ = await client.time()
    while (await client.time())[0] == second:
        await asyncio.sleep(0.01)


async def test_eviction_takes_old_stories_and_neither_fleet_nor_leases_nor_open_tickets() -> None:
    # Redis looks at a few keys of chance and evicts the oldest of them; the more, the closer to the oldest of all.
    with EmbeddedStore(max_memory_bytes=4 << 20, arguments=("--maxmemory-samples", "64")) as store:
        client = connect(store.url)
        fleet, recovery, ledger = FleetStore(client), Recovery(client), ReadLedger(client, "tandem", "router-a")
        epoch = await fleet.claim_epoch(P0)
        await fleet.register(an_instance(epoch=epoch), 600.0)
        for number in range(20):
            ledger.post(Opened(ticket(number, deadline_for_s=3600.0)))
        await ledger.flush()
        number = 1000
        while int((await client.info("stats"))["evicted_keys"]) < 1000:
            await next_second(client)
            for _ in range(1000):
                number += 1
                ledger.post(Opened(ticket(number)))
                ledger.post(Noted(transfer_id_of(RequestId(f"req-{number}"), Attempt(1)), "noted", "x" * 200))
                ledger.post(Closed(transfer_id_of(RequestId(f"req-{number}"), Attempt(1)), Outcome.SERVED))
            await ledger.flush()
            assert await fleet.heartbeat(P0, epoch, Load(), 600.0)
            assert len(await fleet.snapshot()) == 1
            await recovery.renew("router-b", 600.0)
            assert (await recovery.claim({"nobody"})).owners == {"router-a"}
        assert await ledger.story(RequestId("req-1001")) == (), "the oldest story has gone"
        assert await ledger.story(RequestId(f"req-{number}")) != (), "the newest has not"
        assert (ledger.counts.rejected, ledger.counts.dropped, ledger.degraded) == (0, 0, False)
        assert (await recovery.renew("router-b", 600.0)).remembered
        claims = await recovery.claim({"router-a"})
        assert len(claims.tickets) == 20
        await client.aclose()
