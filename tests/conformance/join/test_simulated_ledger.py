"""The simulated ledger keeps attempts as Redis does: same states, same outcomes, same open tickets."""

from __future__ import annotations

import random

import pytest
from redis.asyncio import Redis

from engine_shim.simulation.ledger import Ledger as SimulatedLedger
from router.contract.ids import Attempt, Epoch, InstanceId, RequestId, TransferId, transfer_id_of
from router.contract.instance import Mode
from router.contract.ledger import Arrived, Closed, Entry, Opened, Outcome
from router.contract.rendezvous import Arrival, JoinState, Ticket
from tests.support.read_ledger import ReadLedger

pytestmark = pytest.mark.needs("redis")

REQUESTS = 120


def entries_of(rng: random.Random, request_id: RequestId) -> list[Entry]:
    entries: list[Entry] = []
    for _ in range(rng.randint(1, 12)):
        attempt = Attempt(rng.choice((1, 1, 2)))
        transfer_id = transfer_id_of(request_id, attempt)
        kind = rng.random()
        if kind < 0.2:
            d = InstanceId("d")
            entries.append(Opened(Ticket(request_id, attempt, Mode.PUSH, d, Epoch(1), d, Epoch(1), 30.0, "r")))
        elif kind < 0.3:
            entries.append(Closed(transfer_id, rng.choice(list(Outcome))))
        else:
            entries.append(Arrived(transfer_id, rng.choice(list(Arrival))))
    return entries


async def test_random_histories_end_alike(redis: Redis, namespace: str) -> None:
    rng = random.Random(7)
    real, simulated = ReadLedger(redis, namespace, "r"), SimulatedLedger()
    request_ids = [RequestId(f"req-{number}") for number in range(REQUESTS)]
    for request_id in request_ids:
        for entry in entries_of(rng, request_id):
            real.post(entry)
            await real.flush()
            simulated.put(entry, 0.0, 5.0)
    assert await real.open_tickets() == len(simulated.opened) > 10
    assert real.counts.fenced == simulated.fenced > 10
    states: dict[TransferId, JoinState] = {}
    for request_id in request_ids:
        for line in await real.story(request_id):
            if line.after is not None:
                states[transfer_id_of(request_id, line.attempt)] = line.after
    walked = {transfer_id: one.state for transfer_id, one in simulated.attempts.items() if transfer_id in states}
    assert walked == states
