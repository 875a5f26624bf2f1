import asyncio
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from router.contract.errors import StoreDown
from router.contract.ids import Epoch, InstanceId
from router.contract.instance import Load, Role
from router.store import keys
from router.store.connection import connect
from router.store.fleet import KEEP_S, FleetStore
from tests.support.fleets import an_instance

pytestmark = pytest.mark.needs("redis")

P0 = InstanceId("p0")
LEASE_S = 30.0


@pytest.fixture
def fleet(redis: Redis, namespace: str) -> FleetStore:
    return FleetStore(redis, namespace)


async def emptied(fleet: FleetStore) -> None:
    while await fleet.snapshot():
        await asyncio.sleep(0.005)


async def test_an_empty_fleet_is_an_empty_snapshot(fleet: FleetStore) -> None:
    assert await fleet.snapshot() == ()


async def test_a_registered_instance_is_seen_with_its_lease_and_no_load(fleet: FleetStore) -> None:
    assert await fleet.register(an_instance(), LEASE_S)
    (record,) = await fleet.snapshot()
    assert (record.instance, record.load) == (an_instance(), Load())
    assert 0 < record.lease_left_s <= LEASE_S


async def test_snapshots_are_ordered_by_id(fleet: FleetStore) -> None:
    for name in ("d1", "p0", "d0"):
        await fleet.register(an_instance(name, role=Role.DECODE), LEASE_S)
    assert [record.instance.instance_id for record in await fleet.snapshot()] == ["d0", "d1", "p0"]


async def test_a_heartbeat_brings_the_load_and_extends_the_lease(fleet: FleetStore) -> None:
    await fleet.register(an_instance(), 5.0)
    assert await fleet.heartbeat(P0, Epoch(7), Load(running_seqs=3, free_blocks=2), LEASE_S)
    (record,) = await fleet.snapshot()
    assert record.load == Load(running_seqs=3, free_blocks=2)
    assert 5.0 < record.lease_left_s <= LEASE_S


async def test_epochs_grow_with_every_claim_even_within_one_millisecond(fleet: FleetStore) -> None:
    epochs = [await fleet.claim_epoch(P0) for _ in range(50)]
    assert epochs == sorted(set(epochs))
    assert await fleet.claim_epoch(InstanceId("p1")) >= epochs[0]


async def test_a_newer_claim_fences_the_older_start(fleet: FleetStore) -> None:
    old = await fleet.claim_epoch(P0)
    await fleet.register(an_instance(epoch=old), LEASE_S)
    new = await fleet.claim_epoch(P0)
    assert not await fleet.heartbeat(P0, old, Load(), LEASE_S)
    assert not await fleet.register(an_instance(epoch=old), LEASE_S)
    assert not await fleet.leave(P0, old)
    assert await fleet.register(an_instance(epoch=new), LEASE_S)
    assert [record.instance.epoch for record in await fleet.snapshot()] == [new]


async def test_a_new_start_does_not_inherit_the_load(fleet: FleetStore) -> None:
    await fleet.register(an_instance(epoch=1), LEASE_S)
    await fleet.heartbeat(P0, Epoch(1), Load(running_seqs=9), LEASE_S)
    await fleet.register(an_instance(epoch=2), LEASE_S)
    assert [record.load for record in await fleet.snapshot()] == [Load()]


async def test_an_ended_lease_removes_the_instance_until_it_registers_anew(
    fleet: FleetStore, redis: Redis, namespace: str
) -> None:
    await fleet.register(an_instance(), 0.02)
    await emptied(fleet)
    assert not await fleet.heartbeat(P0, Epoch(7), Load(), LEASE_S)
    assert await redis.hlen(keys.fleet_instances(namespace)) == 0
    assert await fleet.register(an_instance(), LEASE_S)
    assert len(await fleet.snapshot()) == 1


async def test_an_instance_that_leaves_is_gone_with_all_its_records(
    fleet: FleetStore, redis: Redis, namespace: str
) -> None:
    await fleet.register(replace(an_instance(), draining=True), LEASE_S)
    await fleet.heartbeat(P0, Epoch(7), Load(), LEASE_S)
    assert await fleet.leave(P0, Epoch(7))
    assert await fleet.snapshot() == ()
    left = [name async for name in redis.scan_iter(f"{{{namespace}:*")]
    assert left == [keys.fleet_start(namespace, P0).encode()]


async def test_draining_is_shown_and_survives_a_lost_lease(fleet: FleetStore) -> None:
    await fleet.register(an_instance(), LEASE_S)
    assert [record.instance.draining for record in await fleet.snapshot()] == [False]
    await fleet.register(replace(an_instance(), draining=True), 0.02)
    await emptied(fleet)
    await fleet.register(an_instance(), LEASE_S)
    assert [record.instance.draining for record in await fleet.snapshot()] == [True]


async def test_draining_ends_with_the_next_start(fleet: FleetStore) -> None:
    await fleet.register(replace(an_instance(), draining=True), LEASE_S)
    assert [record.instance.draining for record in await fleet.snapshot()] == [True]
    epoch = await fleet.claim_epoch(P0)
    await fleet.register(an_instance(epoch=epoch), LEASE_S)
    assert [record.instance.draining for record in await fleet.snapshot()] == [False]


@pytest.mark.parametrize("garbage", [b"", b"{", b'{"v":9}', b"\xff"])
async def test_a_bad_record_hides_no_other_and_is_counted(
    fleet: FleetStore, redis: Redis, namespace: str, garbage: bytes
) -> None:
    for name in ("p0", "p1", "p2"):
        await fleet.register(an_instance(name), LEASE_S)
        await fleet.heartbeat(InstanceId(name), Epoch(7), Load(), LEASE_S)
    await redis.hset(keys.fleet_instances(namespace), "p0", garbage)
    await redis.hset(keys.fleet_loads(namespace), "p2", garbage)
    assert [record.instance.instance_id for record in await fleet.snapshot()] == ["p1"]
    assert (fleet.malformed, fleet.unreadable) == (2, 2)
    await redis.hdel(keys.fleet_instances(namespace), "p0")
    await fleet.leave(InstanceId("p2"), Epoch(7))
    await fleet.leave(InstanceId("p0"), Epoch(7))
    await fleet.snapshot()
    assert (fleet.malformed, fleet.unreadable) == (2, 0)


async def test_every_key_of_the_fleet_has_a_ttl(fleet: FleetStore, redis: Redis, namespace: str) -> None:
    await fleet.claim_epoch(P0)
    await fleet.register(an_instance(), LEASE_S)
    await fleet.heartbeat(P0, Epoch(7), Load(), LEASE_S)
    epoch = await fleet.claim_epoch(P0)
    await fleet.register(replace(an_instance(epoch=epoch), draining=True), LEASE_S)
    await fleet.heartbeat(P0, epoch, Load(), LEASE_S)
    ttls = {name: await redis.ttl(name) async for name in redis.scan_iter(f"{{{namespace}:*")}
    assert len(ttls) == 5
    assert all(0 < ttl_s <= KEEP_S for ttl_s in ttls.values()), ttls


async def test_a_store_that_is_not_there_is_store_down() -> None:
    nobody = connect("unix:///nowhere/store.sock")
    with pytest.raises(StoreDown):
        await FleetStore(nobody, "a").snapshot()
    await nobody.aclose()
