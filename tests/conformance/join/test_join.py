"""One table, two walkers: Redis walks JOIN as Python does, for every trace of up to five arrivals."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from redis.asyncio import Redis

from router.contract.errors import StaleAttempt
from router.contract.ids import Attempt, RequestId, TransferId, transfer_id_of
from router.contract.instance import Mode
from router.contract.ledger import Arrived, Opened
from router.contract.rendezvous import Arrival, JoinEffect, JoinState, Ticket, join
from tests.support.read_ledger import ReadLedger, Walked

pytestmark = pytest.mark.needs("redis")

Trace = tuple[Arrival, ...]
Step = tuple[JoinState, JoinState, tuple[JoinEffect, ...]]


def walk(trace: Trace) -> list[Step]:
    """The oracle: JOIN as Python walks it. A report without a row is held until the table has one for it."""
    state, held, steps = JoinState.EMPTY, None, []
    for arrival in trace:
        before, effects = state, ()
        row = join(state, arrival)
        if row is None:
            held = held or arrival
        else:
            state, effects = row
            later = join(state, held) if held is not None else None
            if later is not None:
                state, effects = later[0], effects + later[1]
        steps.append((before, state, effects))
    return steps


def ids(num_traces: int) -> list[RequestId]:
    return [RequestId(f"req-{number}") for number in range(num_traces)]


async def told(ledger: ReadLedger, request_id: RequestId) -> list[Step]:
    return [(line.before, line.after, line.effects) for line in await ledger.story(request_id)]


async def test_every_trace_of_five_arrivals_is_walked_as_in_python(redis: Redis, namespace: str) -> None:
    ledger = ReadLedger(redis, namespace, "conformance")
    traces = list(product(Arrival, repeat=5))
    for request_id, trace in zip(ids(len(traces)), traces, strict=True):
        for arrival in trace:
            ledger.post(Arrived(transfer_id_of(request_id, Attempt(1)), arrival))
    await ledger.flush()
    assert ledger.counts.written == 5 * len(traces)
    for request_id, trace in zip(ids(len(traces)), traces, strict=True):
        assert await told(ledger, request_id) == walk(trace), trace


async def test_arrivals_of_separate_calls_are_walked_as_in_python(redis: Redis, namespace: str) -> None:
    ledger = ReadLedger(redis, namespace, "conformance")
    for number, trace in enumerate(product(Arrival, repeat=3)):
        transfer_id = TransferId(f"req-{number}.1")
        walked = [await ledger.arrive(Arrived(transfer_id, arrival)) for arrival in trace]
        assert walked == [Walked(after, effects) for _, after, effects in walk(trace)], trace


async def test_a_write_is_ordered_at_most_once(redis: Redis, namespace: str) -> None:
    ledger = ReadLedger(redis, namespace, "conformance")
    traces = list(product(Arrival, repeat=4))
    for request_id, trace in zip(ids(len(traces)), traces, strict=True):
        for arrival in (*trace, Arrival.PREFILLED, Arrival.REGISTERED, Arrival.PREFILLED):
            ledger.post(Arrived(transfer_id_of(request_id, Attempt(1)), arrival))
    await ledger.flush()
    writes = []
    for request_id in ids(len(traces)):
        effects = [effect for _, _, ordered in await told(ledger, request_id) for effect in ordered]
        writes.append(effects.count(JoinEffect.WRITE))
    assert set(writes) == {0, 1}


@pytest.mark.parametrize(
    ("arrivals", "state", "effects"),
    [
        ("Registered Prefilled WriterDone", "LANDED", "FreeKV Write"),
        ("Registered Prefilled WriterFailed", "VOID", "FreeKV FreeSeats Write"),
        ("Registered Prefilled", "MATCHED", "Write"),
        ("Registered Registered Prefilled Prefilled WriterDone WriterDone", "LANDED", "FreeKV Write"),
    ],
)
async def test_writers_that_flush_in_any_order_end_in_the_same_state(
    redis: Redis, namespace: str, arrivals: str, state: str, effects: str
) -> None:
    ledger = ReadLedger(redis, namespace, "conformance")
    orders = sorted(set(permutations(arrivals.split())))
    for request_id, order in zip(ids(len(orders)), orders, strict=True):
        for arrival in order:
            ledger.post(Arrived(transfer_id_of(request_id, Attempt(1)), Arrival(arrival)))
    await ledger.flush()
    for request_id, order in zip(ids(len(orders)), orders, strict=True):
        steps = await told(ledger, request_id)
        assert steps[-1][1] == state, order
        assert " ".join(sorted(effect for step in steps for effect in step[2])) == effects, order


def ticket(request_id: RequestId, attempt: int) -> Ticket:
    return Ticket(request_id, Attempt(attempt), Mode.PUSH, None, 0, "d0", 1, 30.0, "conformance")


@pytest.mark.parametrize("newer_is", ["opened", "arrived"])
@pytest.mark.parametrize("late", [Arrival.REGISTERED, Arrival.PREFILLED])
async def test_an_older_attempt_cannot_order_a_write(
    redis: Redis, namespace: str, newer_is: str, late: Arrival
) -> None:
    ledger = ReadLedger(redis, namespace, "conformance")
    request_id = RequestId("req-0")
    old, new = transfer_id_of(request_id, Attempt(1)), transfer_id_of(request_id, Attempt(2))
    first = Arrival.PREFILLED if late is Arrival.REGISTERED else Arrival.REGISTERED
    await ledger.arrive(Arrived(old, first))
    ledger.post(Opened(ticket(request_id, 2)) if newer_is == "opened" else Arrived(new, Arrival.REGISTERED))
    await ledger.flush()
    with pytest.raises(StaleAttempt):
        await ledger.arrive(Arrived(old, late))
    ledger.post(Arrived(old, late))
    await ledger.flush()
    assert ledger.counts.fenced == 1
    refused = [line for line in await ledger.story(request_id) if line.attempt == 1 and line.stage == late]
    assert [(line.before, line.after, line.effects) for line in refused] == [(None, None, ())] * 2


async def test_an_older_attempt_can_still_come_to_its_end(redis: Redis, namespace: str) -> None:
    ledger = ReadLedger(redis, namespace, "conformance")
    old, new = TransferId("req-0.1"), TransferId("req-0.2")
    for arrival in (Arrival.REGISTERED, Arrival.PREFILLED, Arrival.ABANDONED):
        await ledger.arrive(Arrived(old, arrival))
    assert await ledger.arrive(Arrived(new, Arrival.REGISTERED)) == Walked(JoinState.SEATED, ())
    ended = await ledger.arrive(Arrived(old, Arrival.WRITER_FAILED))
    assert ended == Walked(JoinState.VOID, (JoinEffect.FREE_SEATS, JoinEffect.FREE_KV))
