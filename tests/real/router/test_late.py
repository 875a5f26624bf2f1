"""Decode that is chosen late: on real sockets its leg leaves shortly before prefill's end, or never."""

import asyncio

import pytest

from router.bench.mock_behaviour import Fault
from router.contract.instance import Mode
from tests.support.routers import BODY, PATH, Rig, rig, until
from tests.support.wire import Wire, post

LONG = BODY | {"prompt": "x" * 20_000, "stream": True}


def expecting(r: Rig, expected_s: float) -> None:
    """Prefill of LONG is believed to take so long, and beliefs like that have always been right."""
    late = r.parts.router.desk.rules.late
    for member in r.parts.router.fleet.members:
        member.burden.pace.prefill.base, member.burden.pace.prefill.slope = expected_s, 0.0
    for _ in range(20):
        late.learn(1.0, 1.0)


async def test_a_late_decode_leg_leaves_while_prefill_computes():
    async with rig(num_decode=2, decode_lead_s=0.05, explain_placements=9) as r:
        r.behave(r.prefill, delay_s=0.4)
        expecting(r, 0.25)
        asking = asyncio.create_task(r.client.post(PATH, json=LONG))
        await until(lambda: bool(r.prefill.seen))
        assert not any(engine.seen for engine in r.decodes)
        await until(lambda: any(engine.seen for engine in r.decodes))
        assert r.prefill.num_open == 1, "prefill still computes"
        answer = await asking
        assert answer.status_code == 200 and answer.text.count("[DONE]") == 1
        await r.come_to_rest()
        text = (await r.client.get("/metrics")).text
        assert 'tandem_late_choices_total{result="ahead"} 1.0' in text
        (seen,) = (seen for engine in r.decodes for seen in engine.seen)
        assert seen.handoff.mode is Mode.PUSH and seen.handoff.prefill_engine_id == r.prefill.instance.kv.engine_id


async def test_a_short_prompt_has_both_legs_at_once():
    async with rig(decode_lead_s=0.3) as r:
        r.behave(r.prefill, delay_s=0.3)
        asking = asyncio.create_task(r.client.post(PATH, json=BODY))
        await until(lambda: bool(r.decode.seen))
        assert r.prefill.num_open == 1 and (await asking).status_code == 200
        await r.come_to_rest()


async def test_a_prefill_that_is_quicker_than_expected_does_not_wait():
    async with rig(decode_lead_s=0.05) as r:
        expecting(r, 60.0)
        answer = await r.client.post(PATH, json=LONG)
        assert answer.status_code == 200
        assert r.parts.router.desk.rules.late.choices == {"overtaken": 1}
        await r.come_to_rest()


@pytest.mark.parametrize("end", ["refused", "client"])
async def test_what_ends_before_decode_is_due_never_reaches_decode(end):
    async with rig(decode_lead_s=0.05, attempts=1) as r:
        expecting(r, 60.0)
        r.behave(r.prefill, **({"fault": Fault.REFUSE, "status": 400} if end == "refused" else {"fault": Fault.HANG}))
        if end == "refused":
            assert (await r.client.post(PATH, json=LONG)).status_code == 400
        else:
            wire = await Wire.to(r.port)
            wire.send(post(PATH, LONG))
            await until(lambda: bool(r.prefill.seen))
            wire.cut()
            await until(lambda: bool(r.prefill.taken_back))
        await r.come_to_rest()
        assert not r.decode.seen and not r.decode.taken_back


async def test_an_only_decode_that_drains_meanwhile_is_missed_at_once_and_prefill_is_freed():
    async with rig(decode_lead_s=0.05, attempts=1) as r:
        expecting(r, 1.0)
        r.behave(r.prefill, delay_s=5.0)
        asking = asyncio.create_task(r.client.post(PATH, json=LONG))
        await until(lambda: bool(r.prefill.seen))
        name = r.decode.instance.instance_id
        assert (await r.client.post("/admin/drain", json={"instance_id": name})).status_code == 200
        answer = await asking
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "no_decode"
        await until(lambda: bool(r.prefill.taken_back))
        await r.come_to_rest()
        assert not r.decode.seen


async def test_a_late_decode_that_fails_is_tried_elsewhere():
    async with rig(num_decode=2, decode_lead_s=0.05, decode_policy="round_robin") as r:
        expecting(r, 0.15)
        r.behave(r.prefill, delay_s=0.2)
        first, second = r.decodes[1], r.decodes[0]
        r.behave(first, fault=Fault.CLOSE)
        answer = await r.client.post(PATH, json=LONG)
        assert answer.status_code == 200 and answer.text.count("[DONE]") == 1
        await r.come_to_rest()
        ids = [seen.headers["x-request-id"].rpartition(".") for seen in (first.seen[0], second.seen[0])]
        assert [number for _, _, number in ids] == ["1", "2"] and ids[0][0] == ids[1][0]
