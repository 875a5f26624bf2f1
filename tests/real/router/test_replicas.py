"""Several routers on one store see one fleet and one load."""

import asyncio

import pytest

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from router.contract.seal import Seal
from tests.support.router_process import RouterProcess
from tests.support.routers import BODY, PATH, until
from tests.support.stored_site import HALF_OPEN, KEY, site, stream

pytestmark = pytest.mark.needs("redis")


async def loads(router: RouterProcess) -> dict[str, int]:
    """Running sequences of each instance as this router knows them."""
    instances = (await router.client.get("/admin/fleet")).json()["instances"]
    return {one["instance_id"]: one["load"]["running_seqs"] for one in instances}


async def knows(router: RouterProcess, wanted: dict[str, int]) -> None:
    """Waits until the router has looked at the fleet again."""
    async with asyncio.timeout(20):
        while not wanted.items() <= (await loads(router)).items():
            await asyncio.sleep(0.02)


async def test_d8_a_replica_sees_the_load_that_another_has_made_and_its_end() -> None:
    """smg-project/smg issue 1621: with per-process counters each replica sees only its own share of the load."""
    async with site() as s, s.router() as first, s.router() as second:
        streams = [asyncio.create_task(stream(first)) for _ in range(100)]
        await until(lambda: s.decode.num_open == 100)
        other = MockEngine(Role.DECODE, "d1", seal=Seal(KEY))
        await other.start()
        await s.fleet.register(other.instance, 600.0)
        await s.beat(s.decode, other)
        await knows(second, {"d0": 100, "d1": 0})
        s.prefill.behaviour = Behaviour()
        for _ in range(10):
            assert (await second.client.post(PATH, json=BODY)).status_code == 200
        assert len(other.seen) == 10
        # d0 does not notice that its hundred are gone until the other replica says so.
        s.decode.behaviour = HALF_OPEN
        # What the killed one has not told the store yet, only engines' own deadlines would end.
        await s.open_tickets_are(100)
        await first.kill()
        await asyncio.gather(*streams)
        await until(lambda: s.decode.num_open == 0)
        await s.beat(s.decode, other)
        await knows(second, {"d0": 0})
        await other.stop()


async def test_when_one_replica_is_killed_under_load_only_its_own_open_streams_fail() -> None:
    async with site() as s, s.router() as doomed, s.router() as other:
        s.prefill.behaviour = Behaviour()
        s.decode.behaviour = Behaviour(num_events=100, gap_s=0.05)
        asked, long = BODY | {"stream": True}, 10
        dying = [asyncio.create_task(stream(doomed)) for _ in range(long)]
        lasting = [asyncio.create_task(other.client.post(PATH, json=asked)) for _ in range(long)]
        await until(lambda: s.decode.num_open == 2 * long)
        s.decode.behaviour = Behaviour()
        statuses: list[int] = []

        async def load() -> None:
            while not all(one.done() for one in lasting):
                statuses.append((await other.client.post(PATH, json=BODY)).status_code)
                await asyncio.sleep(0.02)

        loads_ = [asyncio.create_task(load()) for _ in range(4)]
        await until(lambda: len(statuses) > 20)
        await doomed.kill()
        await asyncio.gather(*dying)
        answers = await asyncio.gather(*lasting)
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
        await asyncio.gather(*loads_)
        assert set(statuses) == {200} and len(statuses) > 40
        await until(lambda: s.num_open == 0)
