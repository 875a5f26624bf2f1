"""A prefill that is late gets a rival; the client has one answer, and the loser holds nothing."""

import pytest

from router.bench.mock_behaviour import Fault
from router.contract.instance import Mode
from tests.support.routers import BODY, PATH, rig, until

STREAM = BODY | {"stream": True}


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
async def test_a_hanging_prefill_costs_little_and_is_taken_back(mode):
    turns = {"prefill_policy": "round_robin", "decode_policy": "round_robin"}
    async with rig(num_prefill=2, num_decode=2, mode=mode, hedge_share=1.0, hedge_after_s=0.1, **turns) as r:
        slow, quick = r.prefills
        for engine in (slow, r.decode):  # they are chosen together
            r.behave(engine, fault=Fault.HANG)
        for _ in range(4):
            answer = await r.client.post(PATH, json=STREAM)
            assert answer.status_code == 200 and answer.text.count("[DONE]") == 1
        await r.come_to_rest()
        assert r.parts.router.hedges["won"] == r.parts.router.hedges["sent"] >= 2
        assert slow.seen
        await until(lambda: {seen.headers["x-request-id"] for seen in slow.seen} <= set(slow.taken_back))
        ids = [seen.headers["x-request-id"] for engine in (slow, quick) for seen in engine.seen]
        assert len(set(ids)) == len(ids), "no two attempts share an id"
        text = (await r.client.get("/metrics")).text
        assert 'tandem_hedges_total{result="sent"}' in text and 'outcome="failed"' not in text
