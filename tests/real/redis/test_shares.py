"""Shares of budgets in a real store: the script does what the model does that the property test plays with."""

import asyncio
import random

import pytest

from router.contract.shares import UNLIMITED, Question
from router.store import keys
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from router.store.shares import ShareStore
from tests.support.share_store import ShareClient, ShareServer

LEASE_S = 60.0
ALL = Question(10, 0, 10, 10)


async def known(redis, namespace: str, *names: str) -> None:
    """The store has answered about these budgets before, so that its own age does not matter."""
    seconds, _ = await redis.time()
    for name in names:
        await redis.hset(keys.budget(namespace, name), "#seen", seconds * 1000)


@pytest.mark.needs("redis")
async def test_the_script_grants_what_the_model_grants(redis_url, namespace):
    redis = connect(redis_url)
    server, chance = ShareServer(seen={"total": 0.0, "model:m": 0.0}), random.Random(1)
    await known(redis, namespace, "total", "model:m")
    owners = ["a", "b", "c"]
    models = {owner: ShareClient(server, owner) for owner in owners}
    stores = {owner: ShareStore(redis, namespace, owner) for owner in owners}

    def question() -> Question:
        total = chance.choice([UNLIMITED, 7, 10, 1 << 40])
        return Question(total, chance.randrange(5), chance.randrange(12), chance.randrange(20))

    for _ in range(200):
        owner = chance.choice(owners)
        questions = {name: (question(), question()) for name in ("total", "model:m")}
        lease_s = 0.0 if chance.random() < 0.1 else LEASE_S
        assert await stores[owner].ask(questions, lease_s) == await models[owner].ask(questions, lease_s)
    await redis.aclose()


@pytest.mark.needs("redis")
async def test_a_dead_replicas_share_returns_with_its_lease(redis_url, namespace):
    redis = connect(redis_url)
    await known(redis, namespace, "total")
    dead, alive = ShareStore(redis, namespace, "dead"), ShareStore(redis, namespace, "alive")
    await dead.ask({"total": (ALL, ALL)}, 2.0)
    assert (await alive.ask({"total": (ALL, ALL)}, LEASE_S))["total"].granted == (0, 0)
    async with asyncio.timeout(10):
        while (answer := (await alive.ask({"total": (ALL, ALL)}, LEASE_S))["total"]).granted != (10, 10):
            await asyncio.sleep(0.05)
    assert answer.others_want == ({}, {})
    await redis.aclose()


@pytest.mark.needs("redis")
async def test_a_store_that_has_lost_its_memory_lets_nobody_grow_for_a_lease():
    with EmbeddedStore() as embedded:
        redis = connect(embedded.url)
        old, new = ShareStore(redis, "ns", "old"), ShareStore(redis, "ns", "new")
        await old.ask({"total": (ALL, ALL)}, 2.0)
        embedded.kill()
        embedded.start()
        answer = (await new.ask({"total": (ALL, ALL)}, 2.0))["total"]
        assert (answer.granted, answer.in_doubt) == ((0, 0), True)
        kept = Question(10, 4, 10, 10)
        assert (await old.ask({"total": (kept, kept)}, 2.0))["total"].granted == (4, 4)
        async with asyncio.timeout(20):
            while (await new.ask({"total": (ALL, ALL)}, 2.0))["total"].in_doubt:
                assert (await old.ask({"total": (kept, kept)}, 2.0))["total"].granted == (4, 4)
                await asyncio.sleep(0.1)
        assert (await new.ask({"total": (ALL, ALL)}, 2.0))["total"].granted == (6, 6)
        await redis.aclose()


@pytest.mark.needs("redis")
async def test_two_who_ask_at_once_get_the_total_together(redis_url, namespace):
    redis = connect(redis_url)
    await known(redis, namespace, "total")
    stores = [ShareStore(redis, namespace, f"r{number}") for number in range(8)]
    answers = await asyncio.gather(*(one.ask({"total": (Question(10, 0, 3, 3),) * 2}, LEASE_S) for one in stores))
    granted = [answer["total"].granted[0] for answer in answers]
    assert sum(granted) == 10
    assert sorted(granted) == [0, 0, 0, 0, 1, 3, 3, 3]
    await redis.aclose()
