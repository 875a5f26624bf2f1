import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
from redis.asyncio import Redis

from router.contract.errors import StaleAttempt, StoreDown
from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId, transfer_id_of
from router.contract.instance import Mode
from router.contract.ledger import Arrived, Closed, Noted, Opened, Outcome
from router.contract.rendezvous import Arrival, JoinEffect, JoinState, Ticket
from router.store import keys
from router.store import ledger as module
from router.store.batch import MAX_ATTEMPTS, Batch, Posted, Sorting
from router.store.connection import connect
from router.store.delivery import GRACE_S, KEEP_S, STORY_LINES, Unwritten, Written
from router.store.ledger import BATCHES_AT_MOST
from tests.support.read_ledger import ReadLedger, Walked

pytestmark = pytest.mark.needs("redis")

REQUEST = RequestId("req-1")
FIRST, SECOND = transfer_id_of(REQUEST, Attempt(1)), transfer_id_of(REQUEST, Attempt(2))


def ticket(attempt: int = 1, request_id: RequestId = REQUEST, deadline_for_s: float = 30.0) -> Ticket:
    return Ticket(
        request_id,
        Attempt(attempt),
        Mode.PUSH,
        InstanceId("p0"),
        Epoch(3),
        InstanceId("d0"),
        Epoch(4),
        deadline_for_s,
        "router-a",
    )


@pytest.fixture
def ledger(redis: Redis, namespace: str) -> ReadLedger:
    return ReadLedger(redis, namespace, "router-a")


COURSE = "push (configured); sent 250.0 ms, prefill 1000.0 ms, first byte never, end 2000.0 ms"


async def stages(ledger: ReadLedger, request_id: RequestId = REQUEST) -> list[str]:
    return [line.stage for line in await ledger.story(request_id)]


async def ttl_s(redis: Redis, namespace: str) -> int:
    return int(await redis.ttl(keys.ledger_request(namespace, keys.ledger_shard(REQUEST), REQUEST)))


async def test_a_story_tells_what_was_posted_in_order(ledger: ReadLedger) -> None:
    ledger.post(Opened(ticket()))
    ledger.post(Noted(FIRST, "first_token", "after 12 ms"))
    ledger.post(Closed(FIRST, Outcome.SERVED, ("", "push", "configured", 0.25, 1.0, 0.0, 2.0)))
    await ledger.flush()
    story = await ledger.story(REQUEST)
    assert [(line.attempt, line.writer, line.stage, line.note) for line in story] == [
        (1, "router-a", "opened", "push p0@3 -> d0@4, 30 s, by router-a"),
        (1, "router-a", "first_token", "after 12 ms"),
        (1, "router-a", "served", COURSE),
    ]
    assert [(line.before, line.after, line.effects) for line in story] == [(None, None, ())] * 3


async def test_arrivals_tell_the_step_of_their_rendezvous(ledger: ReadLedger) -> None:
    ledger.post(Arrived(FIRST, Arrival.REGISTERED, "3 seats"))
    ledger.post(Arrived(FIRST, Arrival.PREFILLED))
    await ledger.flush()
    assert [(line.stage, line.note, line.before, line.after, line.effects) for line in await ledger.story(REQUEST)] == [
        ("Registered", "3 seats", JoinState.EMPTY, JoinState.SEATED, ()),
        ("Prefilled", "", JoinState.SEATED, JoinState.MATCHED, (JoinEffect.WRITE,)),
    ]


async def test_a_story_joins_all_writers_and_attempts_of_a_request(
    ledger: ReadLedger, redis: Redis, namespace: str
) -> None:
    shim = ReadLedger(redis, namespace, "p0")
    ledger.post(Noted(FIRST, "one"))
    shim.post(Noted(FIRST, "two"))
    ledger.post(Noted(SECOND, "three"))
    await ledger.flush()
    await shim.flush()
    story = await ledger.story(REQUEST)
    assert [line.at_s for line in story] == sorted(line.at_s for line in story)
    assert {(line.stage, line.writer, line.attempt) for line in story} == {
        ("one", "router-a", 1),
        ("two", "p0", 1),
        ("three", "router-a", 2),
    }
    assert [line.stage for line in story if line.writer == "router-a"] == ["one", "three"]


async def test_an_unknown_request_has_an_empty_story(ledger: ReadLedger) -> None:
    assert await ledger.story(RequestId("req-nobody")) == ()


async def test_a_story_keeps_its_newest_lines(ledger: ReadLedger) -> None:
    for number in range(40):
        ledger.post(Noted(FIRST, f"stage-{number}"))
    await ledger.flush()
    for number in range(40, 200):
        ledger.post(Noted(FIRST, f"stage-{number}"))
    await ledger.flush()
    assert await stages(ledger) == [f"stage-{number}" for number in range(200 - STORY_LINES, 200)]


async def test_a_ticket_is_open_from_opened_to_closed(ledger: ReadLedger) -> None:
    for number in range(9):
        ledger.post(Opened(ticket(request_id=RequestId(f"req-{number}"))))
    await ledger.flush()
    assert await ledger.open_tickets() == 9
    for number in range(9):
        ledger.post(Closed(transfer_id_of(RequestId(f"req-{number}"), Attempt(1)), Outcome.FAILED))
    await ledger.flush()
    assert await ledger.open_tickets() == 0


async def test_the_first_outcome_stands_and_a_late_opening_opens_nothing(
    ledger: ReadLedger, redis: Redis, namespace: str
) -> None:
    ledger.post(Closed(FIRST, Outcome.ABANDONED))
    ledger.post(Closed(FIRST, Outcome.SERVED))
    ledger.post(Opened(ticket()))
    await ledger.flush()
    record = await redis.hgetall(keys.ledger_request(namespace, keys.ledger_shard(REQUEST), REQUEST))
    assert record[b"1:outcome"] == b"abandoned"
    assert await ledger.open_tickets() == 0


async def test_an_open_request_outlives_its_deadline_by_the_grace_and_a_closed_one_is_kept(
    ledger: ReadLedger, redis: Redis, namespace: str
) -> None:
    ledger.post(Opened(ticket()))
    await ledger.flush()
    assert 30 + GRACE_S - 5 < await ttl_s(redis, namespace) <= 30 + GRACE_S
    ledger.post(Closed(FIRST, Outcome.SERVED))
    await ledger.flush()
    assert KEEP_S - 5 < await ttl_s(redis, namespace) <= KEEP_S
    ledger.post(Opened(ticket(attempt=2)))
    await ledger.flush()
    assert await ttl_s(redis, namespace) <= 30 + GRACE_S
    ledger.post(Noted(FIRST, "late"))
    await ledger.flush()
    assert await ttl_s(redis, namespace) <= 30 + GRACE_S


async def test_every_key_of_the_ledger_has_a_ttl(ledger: ReadLedger, redis: Redis, namespace: str) -> None:
    ledger.post(Opened(ticket()))
    ledger.post(Noted(TransferId("elsewhere"), "noted"))
    ledger.post(Arrived(TransferId("req-3.1"), Arrival.WRITER_DONE))
    await ledger.flush()
    ttls = {name: await redis.ttl(name) async for name in redis.scan_iter(f"{{{namespace}:*")}
    assert len(ttls) == 6
    assert all(0 < left_s <= KEEP_S for left_s in ttls.values()), ttls


async def test_an_id_of_another_router_is_a_request_of_its_own(ledger: ReadLedger) -> None:
    ledger.post(Noted(TransferId("cmpl-abc"), "seen"))
    ledger.post(Noted(TransferId("cmpl.99999999999999999999"), "seen"))
    await ledger.flush()
    for request_id in ("cmpl-abc", "cmpl.99999999999999999999"):
        assert [(line.attempt, line.stage) for line in await ledger.story(RequestId(request_id))] == [(1, "seen")]


async def test_an_entry_that_is_no_unicode_harms_no_other(ledger: ReadLedger) -> None:
    ledger.post(Noted(FIRST, "before"))
    ledger.post(Noted(FIRST, "broken", "\ud800"))
    ledger.post(Noted(TransferId("\udfff.1"), "broken"))
    ledger.post(Noted(FIRST, "after", "grüße 🙂"))
    await ledger.flush()
    assert await stages(ledger) == ["before", "after"]
    assert (ledger.counts.rejected, ledger.counts.written) == (2, 2)


async def test_a_batch_that_redis_refuses_for_good_harms_no_other(
    ledger: ReadLedger, redis: Redis, namespace: str
) -> None:
    await redis.set(keys.ledger_request(namespace, keys.ledger_shard(REQUEST), REQUEST), "not a hash", ex=60)
    other = next(name for name in map(RequestId, "abcdefgh") if keys.ledger_shard(name) != keys.ledger_shard(REQUEST))
    ledger.post(Noted(FIRST, "lost"))
    ledger.post(Noted(transfer_id_of(other, Attempt(1)), "kept"))
    await ledger.flush()
    assert await stages(ledger, other) == ["kept"]
    assert (ledger.counts.rejected, ledger.counts.written, ledger.degraded) == (1, 1, False)


async def test_a_server_that_takes_no_entries_degrades_the_ledger_and_loses_nothing(
    ledger: ReadLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_redis: Redis, _writer: str, batches: list[Batch]) -> list[Unwritten]:
        return [Unwritten("OOM", again_at_once=False)] * len(batches)

    ledger.post(Noted(FIRST, "kept"))
    with monkeypatch.context() as patch:
        patch.setattr("router.store.ledger.deliver", full)
        with pytest.raises(StoreDown, match="OOM"):
            await ledger.flush()
        assert ledger.degraded
    await ledger.flush()
    assert (await stages(ledger), ledger.degraded) == (["kept"], False)


async def test_an_awaited_arrival_answers_state_and_effects(ledger: ReadLedger) -> None:
    assert await ledger.arrive(Arrived(FIRST, Arrival.PREFILLED)) == Walked(JoinState.FILLED, ())
    assert await ledger.arrive(Arrived(FIRST, Arrival.REGISTERED)) == Walked(JoinState.MATCHED, (JoinEffect.WRITE,))
    await ledger.arrive(Arrived(SECOND, Arrival.REGISTERED))
    with pytest.raises(StaleAttempt):
        await ledger.arrive(Arrived(FIRST, Arrival.REGISTERED))


async def test_without_a_store_entries_wait_and_the_oldest_go_first(redis_url: str, namespace: str) -> None:
    nobody = connect("unix:///nowhere/store.sock")
    ledger = ReadLedger(nobody, namespace, "router-a", max_pending=3)
    for number in range(5):
        ledger.post(Noted(FIRST, f"stage-{number}"))
    assert ledger.counts.dropped == 2
    with pytest.raises(StoreDown):
        await ledger.flush()
    assert (ledger.degraded, ledger.counts.failed_flushes) == (True, 1)
    with pytest.raises(StoreDown):
        await ledger.story(REQUEST)
    with pytest.raises(StoreDown):
        await ledger.open_tickets()
    await ledger.aclose()
    assert ledger.counts.dropped == 5
    await nobody.aclose()


async def test_run_flushes_until_closed_and_close_writes_the_rest(ledger: ReadLedger) -> None:
    running = asyncio.create_task(ledger.run())
    ledger.post(Noted(FIRST, "one"))
    while await stages(ledger) != ["one"]:
        await asyncio.sleep(0.005)
    ledger.post(Noted(FIRST, "two"))
    await ledger.aclose()
    assert await stages(ledger) == ["one", "two"]
    await running


async def test_run_goes_on_while_the_store_is_away(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.store.ledger.FIRST_BACK_OFF_S", 0.001)
    monkeypatch.setattr("router.store.ledger.MAX_BACK_OFF_S", 0.001)
    nobody = connect("unix:///nowhere/store.sock")
    ledger = ReadLedger(nobody, namespace, "router-a")
    running = asyncio.create_task(ledger.run())
    ledger.post(Noted(FIRST, "one"))
    while ledger.counts.failed_flushes < 3:
        await asyncio.sleep(0.001)
    assert not running.done()
    await ledger.aclose()
    await running
    await nobody.aclose()


async def test_run_ends_when_it_is_cancelled(ledger: ReadLedger) -> None:
    running = asyncio.create_task(ledger.run())
    await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()


async def test_a_flush_lets_others_have_a_turn_between_its_calls_and_loses_nothing_when_it_is_stopped(
    ledger: ReadLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    class Watched(Sorting):
        def add(self, posted: Iterable[Posted]) -> None:
            made.append(posted)
            super().add(posted)

        def batches(self) -> Iterator[Batch]:
            for batch in super().batches():
                made.append(batch)
                yield batch

    monkeypatch.setattr(module, "Sorting", Watched)
    requests = [RequestId(f"req-{number}") for number in range(3 * MAX_ATTEMPTS)]
    for request in requests:
        ledger.post(Noted(transfer_id_of(request, Attempt(1)), "x"))
    flushing = asyncio.create_task(ledger.flush())
    for turn in range(6):  # two pieces or more to sort, and four calls or more to make
        while len(made) == turn:
            await asyncio.sleep(0)
        assert len(made) == turn + 1, "nothing else is done in the same turn"
    flushing.cancel()
    with suppress(asyncio.CancelledError):
        await flushing
    await ledger.flush()
    assert ledger.counts.written == len(requests)
    assert [line.stage for line in await ledger.story(requests[-1])] == ["x"]


async def test_a_high_pile_takes_hardly_more_turns_than_a_low_one(
    ledger: ReadLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hundreds of requests make each turn long, a flush of ever more turns would never catch up."""
    made = []

    async def counted(redis: object, writer: str, batches: list[Batch]) -> list[Written]:
        made.append(len(batches))
        return [Written(0)] * len(batches)

    monkeypatch.setattr(module, "deliver", counted)
    for number in range(20_000):
        ledger.post(Noted(transfer_id_of(RequestId(f"req-{number}"), Attempt(1)), "x"))
    flushing, turns = asyncio.create_task(ledger.flush()), 0
    while not flushing.done():
        turns += 1
        await asyncio.sleep(0)
    await flushing
    assert turns <= 40 and len(made) <= 12
    assert ledger.counts.written == 20_000 and max(made) <= BATCHES_AT_MOST
