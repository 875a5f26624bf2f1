"""The ledger against a server that restarts, forgets, refuses and cuts connections."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from router.contract.errors import StoreDown
from router.contract.ids import Attempt, RequestId, TransferId, transfer_id_of
from router.contract.ledger import Arrived, Noted
from router.contract.rendezvous import Arrival, JoinEffect, JoinState
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from tests.support.cut_proxy import CutProxy
from tests.support.read_ledger import ReadLedger

pytestmark = pytest.mark.needs("redis")

REQUEST = RequestId("req-1")
FIRST = TransferId("req-1.1")


@pytest.fixture
def store() -> Iterator[EmbeddedStore]:
    """A server of this test's own, to be hurt."""
    with EmbeddedStore() as store:
        yield store


async def stages(ledger: ReadLedger) -> list[str]:
    return [line.stage for line in await ledger.story(REQUEST)]


async def degraded(ledger: ReadLedger, wanted: bool) -> None:
    while ledger.degraded is not wanted:
        await asyncio.sleep(0.005)


async def test_entries_posted_while_the_server_is_away_are_written_when_it_is_back(store: EmbeddedStore) -> None:
    client = connect(store.url)
    ledger = ReadLedger(client, "a", "router-a")
    running = asyncio.create_task(ledger.run())
    ledger.post(Noted(FIRST, "before"))
    while ledger.counts.written != 1:  # answered, not only applied: else it is sent again, rightly
        await asyncio.sleep(0.005)
    store.kill()
    ledger.post(Noted(FIRST, "while-down"))
    await degraded(ledger, True)
    ledger.post(Noted(FIRST, "still-down"))
    store.start()
    await degraded(ledger, False)
    await ledger.aclose()
    await running
    assert await stages(ledger) == ["while-down", "still-down"]
    assert (ledger.counts.written, ledger.counts.dropped) == (3, 0)
    await client.aclose()


async def test_a_server_that_has_forgotten_the_scripts_is_taught_again(redis: Redis, namespace: str) -> None:
    ledger = ReadLedger(redis, namespace, "router-a")
    for stage in ("one", "two"):
        await redis.script_flush()
        for number in range(8):
            ledger.post(Noted(TransferId(f"req-{number}.1"), stage))
        await ledger.flush()
    assert await stages(ledger) == ["one", "two"]
    assert ledger.counts.written == 16


async def test_what_was_written_before_the_connection_broke_is_told_once(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    async with CutProxy(tmp_path / "cut.sock", redis_url) as proxy:
        client = connect(proxy.url)
        ledger = ReadLedger(client, namespace, "router-a")
        await ledger.flush()
        ledger.post(Arrived(FIRST, Arrival.REGISTERED))
        ledger.post(Arrived(FIRST, Arrival.PREFILLED))
        ledger.post(Noted(FIRST, "noted"))
        await client.ping()
        proxy.swallow = True
        with pytest.raises(StoreDown):
            await ledger.flush()
        proxy.swallow = False
        await ledger.flush()
        assert ledger.counts.written == 3
        story = await ledger.story(REQUEST)
        await client.aclose()
    assert [(line.stage, line.after, line.effects) for line in story] == [
        ("Registered", JoinState.SEATED, ()),
        ("Prefilled", JoinState.MATCHED, (JoinEffect.WRITE,)),
        ("noted", None, ()),
    ]


async def test_a_replica_takes_nothing_and_nothing_is_lost(store: EmbeddedStore) -> None:
    client = connect(store.url)
    ledger = ReadLedger(client, "a", "router-a")
    await client.replicaof("127.0.0.1", 1)
    ledger.post(Noted(FIRST, "kept"))
    with pytest.raises(StoreDown):
        await ledger.flush()
    assert ledger.degraded
    await client.replicaof("NO", "ONE")
    await ledger.flush()
    assert await stages(ledger) == ["kept"]
    assert (ledger.degraded, ledger.counts.rejected) == (False, 0)
    await client.aclose()


async def test_a_full_server_takes_nothing_and_nothing_is_lost(store: EmbeddedStore) -> None:
    client = connect(store.url)
    ledger = ReadLedger(client, "a", "router-a")
    await client.config_set("maxmemory-policy", "noeviction")
    await client.config_set("maxmemory", "1")
    ledger.post(Noted(FIRST, "kept"))
    with pytest.raises(StoreDown):
        await ledger.flush()
    await client.config_set("maxmemory", "0")
    await ledger.flush()
    assert (await stages(ledger), ledger.counts.rejected) == (["kept"], 0)
    await client.aclose()


async def test_many_writers_at_once_order_each_write_exactly_once(redis_url: str, namespace: str) -> None:
    clients = [connect(redis_url, timeout_s=30.0) for _ in range(4)]  # all queue at once, on a machine that may be busy
    ledgers = [ReadLedger(client, namespace, f"writer-{number}") for number, client in enumerate(clients)]
    transfers = [transfer_id_of(RequestId(f"req-{number}"), Attempt(1)) for number in range(100)]
    sides = (Arrival.REGISTERED, Arrival.PREFILLED)
    walked = await asyncio.gather(
        *(
            ledger.arrive(Arrived(transfer_id, sides[(index + number) % 2]))
            for index, transfer_id in enumerate(transfers)
            for number, ledger in enumerate(ledgers)
        )
    )
    assert sum(JoinEffect.WRITE in one.effects for one in walked) == len(transfers)
    for client in clients:
        await client.aclose()


async def test_closing_without_a_server_ends_in_bounded_time_and_counts_what_is_lost(store: EmbeddedStore) -> None:
    client = connect(store.url)
    ledger = ReadLedger(client, "a", "router-a")
    store.kill()
    ledger.post(Noted(FIRST, "lost"))
    await ledger.aclose()
    assert ledger.counts.dropped == 1
    await client.aclose()
