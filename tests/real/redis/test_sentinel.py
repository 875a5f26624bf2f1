"""Fleet, leases and ledger over failovers: by Sentinel, and behind one address that leads to another server."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from router.contract.errors import StoreDown
from router.contract.ids import Epoch, InstanceId, RequestId, TransferId
from router.contract.instance import Load
from router.contract.ledger import Noted
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from router.store.fleet import FleetStore
from router.store.ledger import Ledger
from router.store.pool import StorePool
from router.store.recovery import Recovery
from tests.support.cut_proxy import CutProxy
from tests.support.fleets import an_instance
from tests.support.sentinels import watched_pair

pytestmark = pytest.mark.needs("redis")

P0 = InstanceId("p0")
WITHIN_S = 30
"""What a failover may take on a busy machine; the sentinel itself waits a second."""


def noted(number: int) -> Noted:
    return Noted(TransferId(f"req-{number}.1"), "noted")


async def told(ledger: Ledger, numbers: range) -> list[int]:
    return [number for number in numbers if await ledger.story(RequestId(f"req-{number}"))]


async def again_and_again(fleet: FleetStore, epoch: Epoch) -> bool:
    """What the heartbeat answers once the store answers at all."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with suppress(StoreDown):
                return await fleet.heartbeat(P0, epoch, Load(), 30.0)
            await asyncio.sleep(0.05)


async def test_fleet_and_ledger_go_on_when_the_primary_is_killed_and_nothing_posted_is_lost() -> None:
    async with watched_pair() as pair:
        client = connect(pair.url, timeout_s=0.5)
        fleet, recovery, ledger = FleetStore(client), Recovery(client), Ledger(client, "tandem", "router-a")
        running = asyncio.create_task(ledger.run())
        epoch = await fleet.claim_epoch(P0)
        assert await fleet.register(an_instance(epoch=epoch), 30.0)
        await recovery.renew("router-b", 30.0)
        for number in range(100):
            ledger.post(noted(number))
        while ledger.counts.written != 100:
            await asyncio.sleep(0.005)
        await pair.in_step()
        old = await pair.primary_port()
        pair.servers[old].kill()
        for number in range(100, 200):
            ledger.post(noted(number))
            await asyncio.sleep(0.002)
        assert await again_and_again(fleet, epoch), "the lease that was replicated still holds"
        assert await pair.primary_port() != old
        async with asyncio.timeout(WITHIN_S):
            while ledger.counts.written < 200:
                await asyncio.sleep(0.01)
        await ledger.aclose()
        await running
        assert await told(ledger, range(200)) == list(range(200))
        assert (ledger.counts.dropped, ledger.degraded) == (0, False)
        assert (await recovery.renew("router-a", 10.0)).left_s["router-b"] > 0
        await client.aclose()


async def test_a_planned_failover_moves_everyone_to_the_new_primary() -> None:
    async with watched_pair() as pair:
        client = connect(pair.url, timeout_s=0.5)
        fleet, ledger = FleetStore(client), Ledger(client, "tandem", "router-a")
        epoch = await fleet.claim_epoch(P0)
        assert await fleet.register(an_instance(epoch=epoch), 30.0)
        (new,) = set(pair.servers) - {await pair.primary_port()}
        await pair.sentinel.execute_command("SENTINEL", "FAILOVER", "tandem")
        async with asyncio.timeout(WITHIN_S):
            await pair.becomes_primary(new)
        assert await again_and_again(fleet, epoch)
        ledger.post(noted(1))
        await ledger.flush()
        assert await told(ledger, range(2)) == [1]
        assert [record.instance.epoch for record in await fleet.snapshot()] == [epoch]
        await client.aclose()


async def test_without_a_sentinel_that_answers_the_store_is_down() -> None:
    client = connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/tandem", timeout_s=0.2)
    with pytest.raises(StoreDown):
        await FleetStore(client).snapshot()
    await client.aclose()


async def test_d4_a_demoted_primary_that_answers_readonly_is_left_and_the_pool_rebuilt_once(tmp_path: Path) -> None:
    """redis/redis-py issue 435: pooled connections stay on the demoted server and every write fails until a restart."""
    with EmbeddedStore() as old, EmbeddedStore() as new:
        async with CutProxy(tmp_path / "name.sock", old.url) as name:
            client, demoting = connect(name.url), connect(old.url)
            fleet, ledger = FleetStore(client), Ledger(client, "tandem", "router-a")
            await fleet.register(an_instance(), 30.0)
            # All connections of the pool are in use once, so that each of them leads to the old server.
            await asyncio.gather(*(fleet.snapshot() for _ in range(20)))
            before = name.accepted
            await demoting.replicaof("127.0.0.1", 1)
            name.lead_to(new.url)
            ledger.post(noted(1))
            beats = [fleet.heartbeat(P0, Epoch(7), Load(), 30.0) for _ in range(20)]
            answers = await asyncio.gather(*beats, return_exceptions=True)
            assert {type(answer) for answer in answers} <= {StoreDown, bool}
            assert any(isinstance(answer, StoreDown) for answer in answers)
            assert not await fleet.heartbeat(P0, Epoch(7), Load(), 30.0), "the new server has never heard of it"
            assert await fleet.register(an_instance(), 30.0)
            await ledger.flush()
            assert await told(ledger, range(2)) == [1]
            pool = client.connection_pool
            assert isinstance(pool, StorePool)
            assert pool.num_rebuilds == 1
            assert name.accepted - before <= before, "no more connections than the pool had"
            await client.aclose()
            await demoting.aclose()
