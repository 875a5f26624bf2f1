"""Fleet and ledger on a Redis Cluster: each script's keys lie on one node, and the nodes share the ledger's shards."""

from dataclasses import replace

import pytest

from router.contract.errors import StaleAttempt
from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId, transfer_id_of
from router.contract.instance import Load, Mode
from router.contract.ledger import Arrived, Closed, Noted, Opened, Outcome
from router.contract.rendezvous import Arrival, JoinEffect, JoinState, Ticket
from router.store.connection import connect
from router.store.fleet import FleetStore
from router.store.recovery import Recovery
from tests.support.fleets import an_instance
from tests.support.read_ledger import ReadLedger, Walked
from tests.support.redis_cluster import three_nodes

pytestmark = pytest.mark.needs("redis")

P0 = InstanceId("p0")


async def test_fleet_and_ledger_work_on_three_nodes() -> None:
    async with three_nodes() as url:
        client = connect(url)
        await use_fleet(FleetStore(client))
        await use_ledger(ReadLedger(client, "tandem", "router-a"))
        await use_recovery(Recovery(client), ReadLedger(client, "tandem", "router-b"))
        sizes = await client.dbsize(target_nodes="primaries")
        await client.aclose()
    assert sizes > 40


async def use_fleet(fleet: FleetStore) -> None:
    epoch = await fleet.claim_epoch(P0)
    assert await fleet.register(replace(an_instance(epoch=epoch), draining=True), 30.0)
    assert await fleet.heartbeat(P0, epoch, Load(running_seqs=1), 30.0)
    (record,) = await fleet.snapshot()
    assert (record.instance.draining, record.load.running_seqs) == (True, 1)
    assert await fleet.leave(P0, epoch)


async def use_ledger(ledger: ReadLedger) -> None:
    requests = [RequestId(f"req-{number}") for number in range(40)]
    for request_id in requests:
        first = transfer_id_of(request_id, Attempt(1))
        ledger.post(Arrived(first, Arrival.REGISTERED))
        ledger.post(Noted(first, "noted"))
        ledger.post(Closed(first, Outcome.FAILED))
        ledger.post(Arrived(transfer_id_of(request_id, Attempt(2)), Arrival.PREFILLED))
    await ledger.flush()
    assert (ledger.counts.written, ledger.counts.rejected) == (160, 0)
    for request_id in requests:
        assert [line.stage for line in await ledger.story(request_id)] == ["Registered", "noted", "failed", "Prefilled"]
    matched = await ledger.arrive(Arrived(TransferId("req-7.2"), Arrival.REGISTERED))
    assert matched == Walked(JoinState.MATCHED, (JoinEffect.WRITE,))
    with pytest.raises(StaleAttempt):
        await ledger.arrive(Arrived(TransferId("req-7.1"), Arrival.PREFILLED))
    assert await ledger.open_tickets() == 0


async def use_recovery(recovery: Recovery, ledger: ReadLedger) -> None:
    await recovery.renew("router-b", 0.0)
    assert (await recovery.renew("router-a", 10.0)).left_s.keys() == {"router-a", "router-b"}
    opened = [RequestId(f"req-{number}") for number in range(100, 120)]
    for request_id in opened:
        epochs = (Epoch(1), InstanceId("d0"), Epoch(2))
        ledger.post(Opened(Ticket(request_id, Attempt(1), Mode.PUSH, P0, *epochs, 30.0, "router-b")))
    await ledger.flush()
    claims = await recovery.claim({"router-b"})
    assert {one.transfer_id for one in claims.tickets} == {transfer_id_of(name, Attempt(1)) for name in opened}
    for one in claims.tickets:
        ledger.post(Closed(one.transfer_id, Outcome.ABANDONED, "owner_gone"))
    await ledger.flush()
    assert await ledger.open_tickets() == 0
