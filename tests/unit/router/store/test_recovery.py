import asyncio

import pytest
from msgspec import structs
from redis.asyncio import Redis

from router.contract.errors import StoreDown
from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId, transfer_id_of
from router.contract.instance import Mode
from router.contract.ledger import Closed, Opened, OpenTicket, Outcome
from router.contract.rendezvous import Ticket
from router.store import keys
from router.store.connection import connect
from router.store.recovery import CLAIMS_A_SHARD, Claims, Recovery
from tests.support.read_ledger import ReadLedger

pytestmark = pytest.mark.needs("redis")


def ticket(number: int, owner: str, *, deadline_for_s: float = 30.0, prefill: str | None = "p0") -> Ticket:
    source = InstanceId(prefill) if prefill else None
    epoch = Epoch(1_764_500_000_123)
    return Ticket(
        RequestId(f"req-{number}"),
        Attempt(1),
        Mode.PUSH,
        source,
        epoch,
        InstanceId("d0"),
        Epoch(4),
        deadline_for_s,
        owner,
    )


def transfer(number: int) -> TransferId:
    return transfer_id_of(RequestId(f"req-{number}"), Attempt(1))


def ids(claims: Claims) -> set[str]:
    return {ticket.transfer_id for ticket in claims.tickets}


@pytest.fixture
def recovery(redis: Redis, namespace: str) -> Recovery:
    return Recovery(redis, namespace)


async def open_tickets(redis: Redis, namespace: str, *tickets: Ticket) -> None:
    for owner in {one.owner for one in tickets}:
        ledger = ReadLedger(redis, namespace, owner)
        for one in tickets:
            if one.owner == owner:
                ledger.post(Opened(one))
        await ledger.flush()


async def test_a_lease_runs_from_each_renewal_and_is_remembered_when_it_has_ended(recovery: Recovery) -> None:
    assert 9.9 < (await recovery.renew("a", 10.0)).left_s["a"] <= 10.0
    await recovery.renew("b", 0.001)
    while (leases := await recovery.renew("c", 5.0)).left_s["b"] > -0.05:
        await asyncio.sleep(0.01)
    assert leases.left_s["a"] > 5.0
    assert (await recovery.renew("b", 10.0)).left_s["b"] > 9.0


async def test_a_store_that_has_lost_a_lease_says_so_to_its_owner(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    assert not (await recovery.renew("a", 10.0)).remembered
    assert (await recovery.renew("a", 10.0)).remembered
    await redis.delete(keys.router_leases(namespace))
    assert not (await recovery.renew("a", 10.0)).remembered


async def test_resigning_ends_the_lease_at_once(recovery: Recovery) -> None:
    await recovery.renew("a", 10.0)
    await recovery.renew("a", 0.0)
    assert (await recovery.renew("b", 10.0)).left_s["a"] <= 0


async def test_ended_leases_are_forgotten_in_the_end(recovery: Recovery, redis: Redis, namespace: str) -> None:
    await recovery.renew("a", -3601.0)
    await recovery.renew("b", 1.0)
    assert await redis.zrange(keys.router_leases(namespace), 0, -1) == [b"b"]
    assert 0 < await redis.ttl(keys.router_leases(namespace)) <= 3600


async def test_tickets_of_those_who_are_gone_can_be_claimed_with_all_that_a_reaper_needs(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    await open_tickets(redis, namespace, ticket(1, "a"), ticket(2, "b"), ticket(3, "a", prefill=None))
    claims = await recovery.claim({"a", "nobody"})
    first, third = sorted(claims.tickets, key=lambda one: one.transfer_id)
    assert first == OpenTicket(
        transfer(1), "a", InstanceId("p0"), Epoch(1_764_500_000_123), InstanceId("d0"), Epoch(4), first.overdue_s
    )
    assert -30.0 <= first.overdue_s < -20.0
    assert (third.transfer_id, third.prefill) == (transfer(3), None)
    assert (claims.owners, claims.more) == ({"b"}, False)


async def test_a_claimed_ticket_is_nobody_elses_until_the_claim_ends(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    await open_tickets(redis, namespace, ticket(1, "a"))
    assert ids(await recovery.claim({"a"}, claim_for_s=0.05)) == {transfer(1)}
    assert ids(await recovery.claim({"a"})) == set()
    while not (claims := await recovery.claim({"a"})).tickets:
        await asyncio.sleep(0.01)
    assert ids(claims) == {transfer(1)}
    assert await ReadLedger(redis, namespace, "reader").open_tickets() == 1


async def test_replicas_that_claim_at_once_share_the_tickets_without_overlap(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    await open_tickets(redis, namespace, *(ticket(number, "a") for number in range(200)))
    rounds = [claims for _ in range(4) for claims in await asyncio.gather(*(recovery.claim({"a"}) for _ in range(4)))]
    claimed = [one.transfer_id for claims in rounds for one in claims.tickets]
    assert sorted(claimed) == sorted(transfer(number) for number in range(200))


async def test_many_tickets_are_claimed_in_bounded_calls(recovery: Recovery, redis: Redis, namespace: str) -> None:
    num_tickets = 5 * keys.LEDGER_SHARDS * CLAIMS_A_SHARD
    await open_tickets(redis, namespace, *(ticket(number, "a") for number in range(num_tickets)))
    claimed: set[str] = set()
    more = True
    while more:
        claims = await recovery.claim({"a"})
        assert len(claims.tickets) <= keys.LEDGER_SHARDS * CLAIMS_A_SHARD
        assert not claimed & ids(claims)
        claimed |= ids(claims)
        more = claims.more
    assert len(claimed) == num_tickets


async def test_b12_each_ticket_is_late_on_its_own_whatever_stands_before_it(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    """vllm-project/vllm issue 58222: a scan that stops at the first live entry lets expired ones pile up behind it."""
    late, live = (1, 3, 5), (0, 2, 4)
    await open_tickets(
        redis, namespace, *(ticket(n, "a", deadline_for_s=480.0 if n in live else 0.0) for n in range(6))
    )
    claims = await recovery.claim((), late_s=0.0)
    assert ids(claims) == {transfer(number) for number in late}
    assert all(one.overdue_s >= 0 for one in claims.tickets)
    for number in late:
        await end(redis, namespace, "reaper", number)
    # A live ticket that is opened again and again does not hide a later one either.
    await open_tickets(redis, namespace, ticket(0, "a", deadline_for_s=480.0), ticket(7, "a", deadline_for_s=0.0))
    assert ids(await recovery.claim((), late_s=0.0)) == {transfer(7)}
    assert await ReadLedger(redis, namespace, "reader").open_tickets() == 4


async def end(redis: Redis, namespace: str, writer: str, number: int) -> None:
    ledger = ReadLedger(redis, namespace, writer)
    ledger.post(Closed(transfer(number), Outcome.ABANDONED, "owner_gone"))
    await ledger.flush()


async def test_nothing_is_left_of_a_ticket_that_its_owner_or_a_reaper_has_closed(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    await open_tickets(redis, namespace, ticket(1, "a"), ticket(2, "a"), ticket(3, "a", deadline_for_s=0.0))
    await end(redis, namespace, "a", 1)
    await recovery.claim((), late_s=0.0)
    await recovery.claim({"a"})
    await end(redis, namespace, "reaper", 2)
    await end(redis, namespace, "a", 3)
    left = [name async for name in redis.scan_iter(f"{{{namespace}:*") if b":request:" not in name]
    assert left == []


async def test_a_ticket_of_which_nothing_is_known_any_more_is_dropped(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    """A server short of memory may have evicted the hash and kept the sets."""
    await open_tickets(redis, namespace, ticket(1, "a"))
    shard = keys.ledger_shard(RequestId("req-1"))
    await redis.delete(keys.ledger_tickets(namespace, shard))
    assert await recovery.claim({"a"}) == Claims()
    assert await redis.exists(keys.ledger_open(namespace, shard), keys.ledger_owned(namespace, shard)) == 0


@pytest.mark.parametrize("record", [b"\x96\xa1a\x01\x02\x03\x04\x05", b"\x01", b"\xc1", b""])
async def test_a_ticket_that_cannot_be_read_hides_no_other(
    recovery: Recovery, redis: Redis, namespace: str, record: bytes
) -> None:
    await open_tickets(redis, namespace, *(ticket(number, "a") for number in range(8)))
    shard = keys.ledger_shard(RequestId("req-0"))
    await redis.hset(keys.ledger_tickets(namespace, shard), transfer(0), record)
    assert ids(await recovery.claim({"a"})) == {transfer(number) for number in range(1, 8)}
    assert recovery.malformed == 1


async def test_a_claim_outlives_the_deadline_of_its_tickets(recovery: Recovery, redis: Redis, namespace: str) -> None:
    await open_tickets(redis, namespace, ticket(1, "a", deadline_for_s=0.0))
    await recovery.claim({"a"}, claim_for_s=300.0)
    shard = keys.ledger_shard(RequestId("req-1"))
    for name in (keys.ledger_open(namespace, shard), keys.ledger_tickets(namespace, shard)):
        assert await redis.ttl(name) > 500


async def test_a_shard_that_does_not_answer_costs_only_its_own_tickets(
    recovery: Recovery, redis: Redis, namespace: str
) -> None:
    await open_tickets(redis, namespace, *(ticket(number, "a") for number in range(8)))
    hurt = keys.ledger_shard(RequestId("req-0"))
    await redis.set(keys.ledger_open(namespace, hurt), "not a set", ex=60)
    others = {transfer(number) for number in range(8) if keys.ledger_shard(RequestId(f"req-{number}")) != hurt}
    assert ids(await recovery.claim({"a"})) == others


async def test_without_a_store_both_say_so() -> None:
    nobody = connect("unix:///nowhere/store.sock")
    with pytest.raises(StoreDown):
        await Recovery(nobody).renew("a", 10.0)
    with pytest.raises(StoreDown):
        await Recovery(nobody).claim({"a"})
    await nobody.aclose()


async def test_a_ticket_names_its_decode_once_that_is_chosen(recovery: Recovery, redis: Redis, namespace: str) -> None:
    open_ = structs.replace(ticket(1, "a"), decode=None, decode_epoch=Epoch(0))
    await open_tickets(redis, namespace, open_)
    (claimed,) = (await recovery.claim({"a"}, claim_for_s=-1.0)).tickets
    assert (claimed.prefill, claimed.decode) == (InstanceId("p0"), None)
    await open_tickets(redis, namespace, ticket(1, "a"))
    (claimed,) = (await recovery.claim({"a"})).tickets
    assert (claimed.decode, claimed.decode_epoch) == (InstanceId("d0"), Epoch(4))
    assert await ReadLedger(redis, namespace, "reader").open_tickets() == 1
