"""Clients that leave in random moments of every phase: engines are idle a second later, and nothing is held.

A short round runs with all tests; `TANDEM_TEST_CANCELLATIONS=1000` (`make cancellations`) makes it so many.
"""

import asyncio
import os
import random
from time import monotonic

import pytest

from router.bench.mock_behaviour import Behaviour
from router.contract.instance import Mode
from tests.support.routers import BODY, PATH, Rig, rig, until
from tests.support.wire import Wire, post

NUMBER = int(os.environ.get("TANDEM_TEST_CANCELLATIONS", "120"))
AT_ONCE = 40
IDLE_WITHIN_S = 1.0

PHASES = ("queued", "prefill", "rendezvous", "stream", "ending", "retry")


def slow_in(phase: str) -> tuple[Behaviour, Behaviour]:
    """Prefill and decode that stay in this phase for long enough to be left in it."""
    prefill, decode = Behaviour(), Behaviour(num_events=20, gap_s=0.002)
    if phase in ("prefill", "queued"):
        return Behaviour(delay_s=0.3), Behaviour(delay_s=0.3)
    if phase == "rendezvous":
        return prefill, Behaviour(delay_s=0.3)
    if phase == "stream":
        return prefill, Behaviour(num_events=1000, gap_s=0.01)
    return prefill, decode


async def leave(r: Rig, dice: random.Random, mode_stream: bool) -> None:
    """One client that goes after a random while, with a reset or in good order."""
    wire = await Wire.to(r.port)
    wire.send(post(PATH, BODY | {"stream": mode_stream}))
    await asyncio.sleep(dice.uniform(0.0, 0.15))
    wire.cut() if dice.random() < 0.5 else await wire.close()


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_random_cancellations_leave_engines_idle_and_nothing_held(mode):
    dice = random.Random(4)
    async with rig(num_prefill=2, num_decode=2, mode=mode, max_requests=30, queue_requests=AT_ONCE, attempts=3) as r:
        for start in range(0, NUMBER, AT_ONCE):
            phase = PHASES[start // AT_ONCE % len(PHASES)]
            behaviours = slow_in(phase)
            for engine in r.engines:
                engine.behaviour = behaviours[engine in r.decodes]
            if phase == "retry":
                await r.decode.stop()
            await asyncio.gather(*(leave(r, dice, dice.random() < 0.7) for _ in range(AT_ONCE)))
            left_at = monotonic()
            await r.come_to_rest()
            idle_s = monotonic() - left_at
            assert idle_s < IDLE_WITHIN_S, f"{phase}: idle after {idle_s:.2f} s"
            if phase == "retry":
                await r.decode.start(int(r.decode.url.rpartition(":")[2]))
        router = r.parts.router
        assert router.admission.waiting == router.admission.waiting_tokens == 0
        await until(lambda: all(pool.num_busy == 0 for pool in router.pools().values()))
        for engine in r.engines:
            engine.behaviour = Behaviour()
        assert [(await r.client.post(PATH, json=BODY)).status_code for _ in range(8)] == [200] * 8
        text = (await r.client.get("/metrics")).text
        assert 'outcome="abandoned"' in text and 'outcome="failed"' not in text


@pytest.mark.parametrize("data_path", ["hook", "asgi"])
@pytest.mark.parametrize("header", ["Accept: */*", "Expect: 100-continue"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_with_a_further_request_behind_the_running_one(
    data_path: str, header: str, stream: bool
) -> None:
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, num_events=2000, gap_s=0.01, delay_s=0.0 if stream else 60.0)
        wire = await Wire.to(r.port)
        for _ in range(2):
            wire.send(post(PATH, BODY | {"stream": stream}, header))
        await until(lambda: r.decode.num_open == 1)
        wire.cut()
        await until(lambda: r.at_rest, within_s=10.0)
        assert [one.aborted for one in r.decode.seen] == [True]
