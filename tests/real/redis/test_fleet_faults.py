"""The fleet under leases that end, servers that restart, and many who speak at once."""

import asyncio
from pathlib import Path

import pytest

from router.contract.errors import StoreDown
from router.contract.ids import Epoch, InstanceId
from router.contract.instance import Load
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from router.store.fleet import FleetStore
from tests.support.cut_proxy import CutProxy
from tests.support.fleets import an_instance

pytestmark = pytest.mark.needs("redis")

P0 = InstanceId("p0")


async def test_a_restarted_server_is_filled_again_by_heartbeats_that_register(namespace: str) -> None:
    with EmbeddedStore() as store:
        client = connect(store.url)
        fleet = FleetStore(client, namespace)
        epoch = await fleet.claim_epoch(P0)
        await fleet.register(an_instance(epoch=epoch), 30.0)
        store.kill()
        with pytest.raises(StoreDown):
            await fleet.heartbeat(P0, epoch, Load(), 30.0)
        store.start()
        assert not await fleet.heartbeat(P0, epoch, Load(), 30.0)
        assert await fleet.register(an_instance(epoch=epoch), 30.0)
        assert [record.instance.epoch for record in await fleet.snapshot()] == [epoch]
        await client.aclose()


@pytest.mark.parametrize("takes_no_writes", ["full", "replica", "too few replicas"])
async def test_leases_that_a_server_does_not_let_renew_tell_nothing_of_their_owners(
    takes_no_writes: str, namespace: str
) -> None:
    with EmbeddedStore(arguments=("--maxmemory-policy", "noeviction")) as store:
        client = connect(store.url)
        fleet = FleetStore(client, namespace)
        await fleet.register(an_instance("p0"), 0.2)
        await fleet.register(an_instance("d0"), 60.0)
        if takes_no_writes == "full":
            await client.config_set("maxmemory", "1")
        elif takes_no_writes == "replica":
            await client.replicaof("127.0.0.1", 1)
        else:
            await client.config_set("min-replicas-to-write", "1")
        await asyncio.sleep(0.3)
        for _ in range(2):
            with pytest.raises(StoreDown):
                await fleet.snapshot()
        await client.config_set("maxmemory", "0")
        await client.config_set("min-replicas-to-write", "0")
        await client.replicaof("NO", "ONE")
        assert [record.instance.instance_id for record in await fleet.snapshot()] == ["d0"]
        await client.aclose()


async def test_an_epoch_grows_over_a_server_that_has_lost_everything(namespace: str) -> None:
    with EmbeddedStore() as store:
        client = connect(store.url)
        fleet = FleetStore(client, namespace)
        before = await fleet.claim_epoch(P0)
        store.kill()
        store.start()
        assert await fleet.claim_epoch(P0) > before
        await client.aclose()


async def test_starts_that_claim_at_once_get_different_epochs_and_one_stays(redis_url: str, namespace: str) -> None:
    client = connect(redis_url)
    fleet = FleetStore(client, namespace)
    epochs = await asyncio.gather(*(fleet.claim_epoch(P0) for _ in range(50)))
    assert len(set(epochs)) == 50
    registered = await asyncio.gather(*(fleet.register(an_instance(epoch=epoch), 30.0) for epoch in epochs))
    assert registered == [epoch == max(epochs) for epoch in epochs]
    await client.aclose()


async def test_every_snapshot_among_comings_and_goings_is_of_one_moment(redis_url: str, namespace: str) -> None:
    client = connect(redis_url)
    fleet = FleetStore(client, namespace)
    await fleet.register(an_instance("stays"), 30.0)
    done = asyncio.Event()

    async def come_and_go() -> None:
        for epoch in range(1, 60):
            await fleet.register(an_instance("a", epoch), 30.0)
            await fleet.heartbeat(InstanceId("a"), Epoch(epoch), Load(running_seqs=epoch), 30.0)
            await fleet.leave(InstanceId("a"), Epoch(epoch))
        done.set()

    async def look() -> list[tuple[str, ...]]:
        views = []
        while not done.is_set():
            records = await fleet.snapshot()
            views.append(tuple(record.instance.instance_id for record in records))
            for record in records:
                assert record.load.running_seqs in (0, record.instance.epoch)
        return views

    _, *views = await asyncio.gather(come_and_go(), look(), look())
    assert {view for seen in views for view in seen} <= {("stays",), ("a", "stays")}
    assert fleet.malformed == 0
    await client.aclose()


async def test_an_answer_that_got_lost_does_not_lose_the_lease(redis_url: str, namespace: str, tmp_path: Path) -> None:
    async with CutProxy(tmp_path / "cut.sock", redis_url) as proxy:
        client = connect(proxy.url)
        fleet = FleetStore(client, namespace)
        await fleet.register(an_instance(), 30.0)
        proxy.swallow = True
        with pytest.raises(StoreDown):
            await fleet.heartbeat(P0, Epoch(7), Load(running_seqs=1), 30.0)
        proxy.swallow = False
        assert await fleet.heartbeat(P0, Epoch(7), Load(running_seqs=2), 30.0)
        assert [record.load.running_seqs for record in await fleet.snapshot()] == [2]
        await client.aclose()


async def test_a_cancelled_call_leaves_no_answer_for_the_next_caller(redis_url: str, namespace: str) -> None:
    """redis/redis-py issue 2624: a connection that is pooled with an answer still due is one answer off."""
    client = connect(redis_url)
    for number in range(20):
        await client.set(f"{namespace}:{number}", number, ex=60)
    for number in range(20):
        calls = [asyncio.create_task(client.get(f"{namespace}:{number}")) for _ in range(4)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert await client.get(f"{namespace}:{number}") == str(number).encode()
    await client.aclose()


async def test_a_steady_client_uses_no_more_connections_than_its_pool(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    async with CutProxy(tmp_path / "count.sock", redis_url) as proxy:
        client = connect(proxy.url)
        fleet = FleetStore(client, namespace)
        for _ in range(20):
            await asyncio.gather(*(fleet.snapshot() for _ in range(20)))
        assert proxy.accepted <= 8
        await client.aclose()
