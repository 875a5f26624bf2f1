"""Who gets a request, and how its KV cache gets there, with real sockets: modes, sessions, prefixes, aliases."""

import asyncio
import json

import pytest

from router.bench.mock_behaviour import Behaviour
from router.contract.instance import Mode
from tests.support.routers import PATH, rig, until

LONG = {"model": "m", "prompt": "x" * 4000, "max_tokens": 4}


def asked(rig_, engines):
    return [engine.name for engine in engines for _ in engine.seen]


@pytest.fixture
async def mixed():
    """p0 and d0 push, p1 and d1 pull; the router decides."""
    async with rig(2, 2, mode="auto", crossover_tokens=200, mode_header="X-Tandem-Mode") as r:
        for engine in r.engines:
            engine.modes = (Mode.PUSH,) if engine.name.endswith("0") else (Mode.PULL,)
        pairings = lambda: r.parts.router.fleet.pools["m"].pairings  # noqa: E731
        await until(lambda: all(len(pairings()[mode].prefills) == 1 for mode in pairings()) and len(pairings()) == 2)
        yield r


async def metric(r, name):
    lines = (await r.client.get("/metrics")).text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)}


async def test_a_mixed_pool_pushes_and_pulls_and_keeps_short_prompts_local(mixed):
    r = mixed
    for _ in range(24):
        assert (await r.client.post(PATH, json=LONG)).status_code == 200
    for _ in range(4):
        assert (await r.client.post(PATH, json={"model": "m", "prompt": "hi"})).status_code == 200
    await r.come_to_rest()
    (p0, p1), (d0, d1) = r.prefills, r.decodes
    assert len(p0.seen) + len(p1.seen) == 24 and p0.seen and p1.seen
    assert all(seen.handoff is not None for seen in p0.seen + p1.seen)
    split = [seen for engine in (d0, d1) for seen in engine.seen if seen.handoff is not None]
    assert (len(split), len(d0.seen) + len(d1.seen)) == (24, 28)
    counts = await metric(r, "tandem_placement_total")
    assert counts['tandem_placement_total{mode="push",reason="long"}'] == len(p0.seen)
    assert counts['tandem_placement_total{mode="pull",reason="long"}'] == len(p1.seen)
    assert counts['tandem_placement_total{mode="local",reason="short"}'] == 4


async def test_a_client_names_or_forbids_a_mode(mixed):
    r = mixed
    for value, prefilled in (("local", 0), ("pull", 1), ("!push", 1), ("push", 1)):
        for engine in r.engines:
            engine.seen.clear()
        answer = await r.client.post(PATH, json=LONG, headers={"x-tandem-mode": value})
        assert answer.status_code == 200
        assert sum(len(engine.seen) for engine in r.prefills) == prefilled
        if value in ("pull", "!push"):
            assert asked(r, r.engines) == ["p1", "d1"]
    refused = await r.client.post(PATH, json=LONG, headers={"x-tandem-mode": "sideways"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request")
    whole = await r.client.post(PATH, json=LONG | {"n": 2}, headers={"x-tandem-mode": "!local"})
    assert (whole.status_code, whole.json()["error"]["param"]) == (400, "n")


async def test_auto_goes_on_without_prefill_and_says_so():
    async with rig(1, 1, mode="auto", attempts=2) as r:
        r.prefills[0].modes = (Mode.PULL,)  # in push mode the mock decode would not wait for prefill
        await until(lambda: list(r.parts.router.fleet.pools["m"].pairings) == [Mode.PULL])
        await r.prefills[0].stop()
        answer = await r.client.post(PATH, json=LONG)
        assert answer.status_code == 200
        counts = await metric(r, "tandem_placement_total")
        assert counts == {'tandem_placement_total{mode="local",reason="no_pair"}': 1.0}


async def test_the_crossover_is_learned_from_streams():
    async with rig(1, 1, mode="auto") as r:
        for engine in r.engines:
            engine.modes = (Mode.PULL,)
        await until(lambda: list(r.parts.router.fleet.pools["m"].pairings) == [Mode.PULL])
        r.prefills[0].behaviour = Behaviour(delay_s=0.05)
        for _ in range(48):
            assert (await r.client.post(PATH, json=LONG | {"stream": True})).status_code == 200
        assert r.parts.router.desk.crossover.tokens == 1024
        counts = await metric(r, "tandem_placement_total")
        assert counts['tandem_placement_total{mode="local",reason="learned"}'] > 8
        assert counts['tandem_placement_total{mode="local",reason="explored"}'] >= 8


async def test_sessions_and_prefixes_stay_where_they_are():
    async with rig(3, 3, prefill_policy="prefix", decode_policy="session", session_header="X-Session") as r:
        for number in range(6):
            body = LONG | {"prompt": f"{number % 2}" * 3000 + f"turn {number}", "user": f"u{number % 2}"}
            assert (await r.client.post(PATH, json=body)).status_code == 200
        for engines in (r.prefills, r.decodes):
            assert sorted(len(engine.seen) for engine in engines) in ([0, 3, 3], [0, 0, 6])
        for engine in r.engines:
            engine.seen.clear()
        for number in range(9):
            answer = await r.client.post(PATH, json=LONG | {"user": f"u{number}"}, headers={"x-session": "one"})
            assert answer.status_code == 200
        assert sorted(len(engine.seen) for engine in r.decodes) == [0, 0, 9]


async def test_o25_an_alias_is_served_as_its_model_and_an_unknown_name_nowhere():
    async with rig(model_aliases=("gpt-4o=m",)) as r:
        listed = {card["id"]: card["root"] for card in (await r.client.get("/v1/models")).json()["data"]}
        assert listed == {"m": "m", "gpt-4o": "m"}
        assert (await r.client.post(PATH, json=LONG | {"model": "gpt-4o"})).status_code == 200
        await r.come_to_rest()
        assert {json.loads(seen.body)["model"] for engine in r.engines for seen in engine.seen} == {"m"}
        unknown = await r.client.post(PATH, json=LONG | {"model": "gpt-5"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert all(len(engine.seen) == 1 for engine in r.engines)


async def test_why_the_last_requests_were_placed_as_they_were_is_told():
    async with rig(2, 1, explain_placements=8) as r:
        ids = [(await r.client.post(PATH, json=LONG)).headers["x-request-id"] for _ in range(3)]
        await r.client.post(PATH, json=LONG | {"model": "other"})
        told = (await r.client.get("/admin/placements?limit=3")).json()
        assert told["explaining"] is True
        refused, last, second = told["placements"]
        assert (refused["mode"], refused["reason"]) == ("", "model_not_found")
        assert [last["request_id"], second["request_id"]] == [ids[2], ids[1]]
        assert (last["mode"], last["reason"], last["decode"]) == ("push", "configured", "d0")
        assert {one["instance_id"]: one["skipped"] for one in last["candidates"]} == {"p0": "", "p1": "", "d0": ""}


async def test_nothing_is_kept_where_nobody_has_asked():
    async with rig() as r:
        await r.client.post(PATH, json=LONG)
        assert (await r.client.get("/admin/placements")).json() == {"explaining": False, "placements": []}


@pytest.mark.parametrize("data_path", ["hook", "asgi"])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_asks_is_told_who_served_it_and_how_and_nobody_else_is(data_path, stream):
    async with rig(data_path=data_path, explain_header="X-Tandem-Explain", mode="pull") as r:
        body = LONG | {"stream": stream}
        told = (await r.client.post(PATH, json=body, headers={"X-Tandem-Explain": "1"})).headers
        ours = {name.removeprefix("x-tandem-"): value for name, value in told.items() if name.startswith("x-tandem-")}
        assert ours.pop("attempt") == "1" and ours.pop("mode") == "pull" and ours.pop("reason") == "configured"
        assert {ours["prefill"], ours["decode"]} == {m.instance.instance_id for m in r.parts.router.fleet.members}
        timing = dict(part.split(";dur=") for part in told["server-timing"].split(", "))
        assert float(timing["first"]) >= float(timing["prefill"]) > 0
        quiet = (await r.client.post(PATH, json=body)).headers
        assert not [name for name in quiet if name.startswith("x-tandem") or name == "server-timing"]


async def test_nobody_is_told_where_the_setting_is_not_made():
    async with rig() as r:
        told = (await r.client.post(PATH, json=LONG, headers={"X-Tandem-Explain": "1"})).headers
        assert not [name for name in told if name.startswith("x-tandem")]


async def test_all_names_of_a_model_share_its_budget():
    async with rig(model_aliases=("a=m", "b=m"), model_max_requests=2) as r:
        r.behave(r.decode, num_events=10_000, gap_s=0.05)
        bodies = [LONG | {"model": name, "stream": True} for name in ("a", "b")]
        async with (
            r.client.stream("POST", PATH, json=bodies[0]) as first,
            r.client.stream("POST", PATH, json=bodies[1]) as second,
        ):
            assert (first.status_code, second.status_code) == (200, 200)
            assert (await r.client.post(PATH, json=LONG)).json()["error"]["code"] == "overloaded"
        await r.come_to_rest()


async def test_a_name_that_nobody_has_takes_no_place_in_the_line():
    async with rig(max_requests=1, queue_requests=1, explain_placements=4) as r:
        r.behave(r.decode, num_events=10_000, gap_s=0.05)
        async with r.client.stream("POST", PATH, json=LONG | {"stream": True}):
            waiting = asyncio.create_task(r.client.post(PATH, json=LONG))
            await until(lambda: r.parts.router.admission.waiting == 1)
            answer = await r.client.post(PATH, json=LONG | {"model": "nobody's"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            waiting.cancel()
        await r.come_to_rest()
