"""A router before plain vLLM servers: nothing of ours runs inside them, and what breaks them is never sent."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from router.build import build_parts, build_server
from router.contract.instance import Mode
from router.discovery import server as server_module
from router.driver import attempt as attempt_module
from router.driver import lease_guard as lease_guard_module
from router.driver import mend as mend_module
from router.process.listeners import listen
from router.settings import Settings, check
from tests.support.routers import PATH, until
from tests.support.vllm_servers import VllmServer, Wire

BODY = {"model": "m", "prompt": "hi", "max_tokens": 4}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(server_module, "POLL_S", 0.02)


@asynccontextmanager
async def site(prefills=1, decodes=1, settings=None, **changes):
    """A router, and vLLM servers with `changes`; yields (client, prefill servers, decode servers, parts)."""
    wire = Wire()
    engines = [VllmServer(wire, **changes) for _ in range(prefills + decodes)]
    urls = [await engine.start() for engine in engines]
    made = Settings(port=0, access_log=False, grace_s=1.0, fleet_poll_s=0.02)
    made = replace(made, prefill=tuple(urls[:prefills]), decode=tuple(urls[prefills:]), **(settings or {}))
    listener = listen("127.0.0.1", 0)
    parts = build_parts(check(made))
    server = build_server(made, parts)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or serving.done())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=20.0) as client:
            yield client, engines[:prefills], engines[prefills:], parts
    finally:
        server.should_exit = True
        await serving
        for engine in engines:
            await engine.stop()


def text_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def ready(parts, num):
    return until(lambda: len(parts.router.fleet.members) == num and parts.router.fleet.serves)


@pytest.mark.parametrize("mode", ["push", "pull"])
async def test_the_first_request_already_knows_who_prefill_is(mode):
    async with site(mode=mode, settings={"mode": Mode(mode)}) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        assert text_of(await client.post(PATH, json=BODY)) == f"kv of {p.engine_id}"
        assert (len(p.probes), len(d.probes)) == (1, 0)
        (sent,), (got,) = p.seen, d.seen
        assert sent.headers["x-request-id"] == got.headers["x-request-id"]
        assert sent.params["transfer_id"] == sent.headers["x-request-id"]
        assert (sent.body["max_tokens"], sent.body["stream"]) == (1, False)
        assert got.body["max_tokens"] == 4
        if mode == "push":
            assert got.params["transfer_id"] == sent.params["transfer_id"]
            assert (got.params["tp_size"], got.params["pp_size"]) == (1, 1)
        await until(lambda: not d.held)


async def test_both_legs_leave_at_once_in_push_mode():
    async with site() as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.prefill_gate.clear()
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: p.seen and d.seen)
        p.prefill_gate.set()
        assert text_of(await asked) == f"kv of {p.engine_id}"
        assert not p.held - {f"cmpl-{p.probes[0].headers['x-request-id']}-0"}


async def test_a_client_that_leaves_strands_no_blocks_of_decode():
    """Closing both legs would: decode's blocks are only freed by prefill's WRITE."""
    async with site() as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.prefill_gate.clear()
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: d.held and p.seen)
        asked.cancel()
        await until(lambda: d.seen[0].aborted)
        assert not p.seen[0].aborted and d.held
        p.prefill_gate.set()
        await until(lambda: not d.held)
        await until(lambda: not parts.router.leftovers)
        assert all(member.burden.requests == 0 for member in parts.router.fleet.members)


async def test_a_client_that_leaves_stops_prefill_in_pull_mode():
    async with site(mode="pull", settings={"mode": Mode.PULL}) as (client, (p,), _, parts):
        await ready(parts, 2)
        p.prefill_gate.clear()
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: p.seen)
        asked.cancel()
        await until(lambda: p.seen[0].aborted)
        p.prefill_gate.set()


async def test_a_request_that_decode_refuses_stops_prefill():
    """Nothing has been registered, so nothing is stranded, and prefill need not compute for nobody."""
    async with site(refuse_decode=400) as (client, (p,), _, parts):
        await ready(parts, 2)
        p.prefill_gate.clear()
        assert (await client.post(PATH, json=BODY)).status_code == 400
        await until(lambda: p.seen[0].aborted)
        p.prefill_gate.set()


async def test_a_prefill_that_fails_ends_decode():
    async with site(settings={"attempts": 1}) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.fail_prefill = 400
        assert (await client.post(PATH, json=BODY)).status_code == 400
        await until(lambda: d.seen[0].aborted)


@pytest.mark.parametrize("how", ["refuses", "closes"])
async def test_blocks_that_a_failed_prefill_has_stranded_are_freed(how):
    """Aborting decode's request does not free them; only a WRITE under the same id does."""
    async with site(settings={"attempts": 1, "probe_s": 0}) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.prefill_gate.clear()
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: d.held and p.seen)
        if how == "refuses":
            p.fail_prefill = 500
            p.prefill_gate.set()
        else:
            p.cut()
        assert (await asked).status_code == 502
        await until(lambda: d.seen[0].aborted)
        assert d.held
        p.fail_prefill = 0
        p.prefill_gate.set()
        await until(lambda: not d.held)
        first, again = (seen.headers["x-request-id"] for seen in p.seen)
        assert first == again
        await until(lambda: not parts.router.mends)
        assert parts.router.mended == {"freed": 1}


@pytest.mark.parametrize("registers", ["after the second prefill", "before it"])
async def test_a_prompt_whose_lease_ends_while_decode_queues_is_computed_once_more(registers, monkeypatch):
    """Stock decode that registers too late hears nothing, and without a stream nobody sees it wait."""
    monkeypatch.setattr(lease_guard_module, "AGAIN_S", 0.02)
    async with site(settings={"vllm_lease_s": 0.2, "probe_s": 0}) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        d.decode_gate.clear()
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: p.held and parts.router.lease_guards)
        (guard,) = parts.router.lease_guards
        await until(lambda: guard.looked)
        p.end_leases()
        if registers == "before it":
            p.prefill_gate.clear()
            d.decode_gate.set()
        await until(lambda: len(p.seen) == 2)
        p.prefill_gate.set()
        d.decode_gate.set()
        assert text_of(await asked).startswith("kv of")
        assert p.seen[0].headers["x-request-id"] == p.seen[1].headers["x-request-id"]
        assert parts.router.mended == {"renewed": 1} and not parts.router.lease_guards
        assert not p.held and not d.held


async def test_a_lease_that_has_not_ended_is_left_alone(monkeypatch):
    monkeypatch.setattr(lease_guard_module, "AGAIN_S", 0.02)
    monkeypatch.setattr(lease_guard_module, "LATE_S", 0.1)
    async with site(settings={"vllm_lease_s": 0.1, "probe_s": 0}) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.expired = 7
        await until(lambda: any(member.load.expired_leases == 7 for member in parts.router.fleet.members))
        d.decode_gate.clear()
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: parts.router.lease_guards)
        await until(lambda: not parts.router.lease_guards)
        d.decode_gate.set()
        assert text_of(await asked).startswith("kv of")
        assert len(p.seen) == 1 and not parts.router.mended


@pytest.mark.parametrize("how", ["late", "dies"])
async def test_a_prefill_that_exceeds_its_deadline_is_left_and_seen_to(how):
    """The client has its answer; decode has its blocks back once prefill writes, or is known to have lost them."""
    async with site(settings={"attempts": 1, "prefill_s": 0.2}) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.prefill_gate.clear()
        assert (await client.post(PATH, json=BODY)).status_code == 504
        await until(lambda: d.seen[0].aborted)
        assert d.held and not p.seen[0].aborted
        if how == "late":
            p.prefill_gate.set()
            await until(lambda: not d.held and not parts.router.leftovers)
            assert not parts.router.mended
        else:
            await p.restart()
            p.prefill_gate.set()
            await until(lambda: parts.router.mended == {"lost": 1})


@pytest.mark.parametrize("waits", [{"first_token_s": 0.3}, {"registration_s": 0.1, "kv_wait_s": 0.2}])
async def test_a_write_that_never_comes_is_asked_for_again(monkeypatch, waits):
    """Prefill has answered well, and its lease has ended before decode came to register."""
    monkeypatch.setattr(attempt_module, "WRITE_S", 0.1)
    async with site(settings={"attempts": 1} | waits) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.loses_writes = 1
        answer = await client.post(PATH, json=BODY | {"stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "first_token_timeout")
        await until(lambda: not d.held and parts.router.mended == {"freed": 1})


async def test_blocks_that_cannot_be_freed_are_told_of(monkeypatch, caplog):
    monkeypatch.setattr(mend_module, "DELAYS_S", (0.01, 0.01))
    async with site(settings={"attempts": 1}) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        p.fail_prefill = 500
        assert (await client.post(PATH, json=BODY)).status_code == 502
        await until(lambda: parts.router.mended == {"lost": 1})
        assert not parts.router.mends and len(p.seen) == 3
        assert f"{d.url} keeps blocks" in caplog.text


@pytest.mark.parametrize("tells_start", [True, False])
async def test_a_restart_is_noticed_between_requests(tells_start):
    async with site(tells_start=tells_start) as (client, (p,), _, parts):
        await ready(parts, 2)
        assert text_of(await client.post(PATH, json=BODY)) == f"kv of {p.engine_id}"
        old = p.engine_id
        if not tells_start:
            await p.stop()  # what a process does not tell is told by its absence, which in life is half a minute
            await until(lambda: len(parts.router.fleet.members) == 1)
        await p.restart()
        await until(
            lambda: any(m.instance.kv and m.instance.kv.engine_id == p.engine_id for m in parts.router.fleet.members)
        )
        assert p.engine_id != old
        assert text_of(await client.post(PATH, json=BODY)) == f"kv of {p.engine_id}"


async def test_a_restart_that_nobody_saw_costs_an_attempt_and_no_request():
    async with site() as (client, (p,), _, parts):
        await ready(parts, 2)
        looks = len(p.probes)
        for _, looking in parts.servers._running.values():
            looking.cancel()
        p._begin()
        p.prefill_gate.clear()
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        await until(lambda: asked.done() or any(one._attempt.withheld for one in parts.router.live))
        p.prefill_gate.set()  # decode's 500 has come first
        assert text_of(await asked) == f"kv of {p.engine_id}"
        assert len(p.probes) == looks and len(p.seen) == 2
        first, second = (seen.headers["x-request-id"] for seen in p.seen)
        assert first != second, "one id is one attempt"
        assert text_of(await client.post(PATH, json=BODY)) == f"kv of {p.engine_id}"
        assert len(p.seen) == 3, "it has been learned"


async def test_a_failure_of_decode_that_is_its_own_is_the_answer():
    async with site(refuse_decode=500) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        answer = await client.post(PATH, json=BODY)
        assert answer.status_code == 502
        assert (len(p.seen), len(d.seen)) == (1, 1)
        assert not p.seen[0].aborted


async def test_ranks_are_instances_and_legs_name_them():
    async with site(dp_size=2) as (client, (p,), (d,), parts):
        await ready(parts, 4)
        told = {m.instance.kv.engine_id for m in parts.router.fleet.members if m.instance.role == "prefill"}
        assert told == {p.rank_id(0), p.rank_id(1)}
        for _ in range(8):
            text_of(await client.post(PATH, json=BODY))
        for sent, got in zip(p.seen, d.seen, strict=True):
            rank = int(sent.headers["x-data-parallel-rank"])
            assert got.params["remote_engine_id"] == p.rank_id(rank)
            assert got.params["remote_port"] == p.side_port + rank
            assert got.headers["x-data-parallel-rank"] in ("0", "1")
        assert {sent.headers["x-data-parallel-rank"] for sent in p.seen} == {"0", "1"}


async def test_names_and_adapters_are_models():
    async with site(names=("m", "m-alias"), loras=("fr",)) as (client, (p,), (d,), parts):
        await ready(parts, 2)
        assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["fr", "m", "m-alias"]
        assert text_of(await client.post(PATH, json=BODY | {"model": "fr"})) == f"kv of {p.engine_id}"
        assert (p.seen[0].body["model"], d.seen[0].body["model"]) == ("fr", "fr")


async def test_an_engine_that_is_not_well_gets_nothing():
    """C11: it listens, and answers 503 on /health."""
    async with site(prefills=2) as (client, (p0, p1), _, parts):
        await ready(parts, 3)
        p0.healthy = False
        await until(lambda: len(parts.router.fleet.members) == 2)
        for _ in range(8):
            text_of(await client.post(PATH, json=BODY))
        assert not p0.seen and len(p1.seen) == 8
        p1.healthy = False
        await until(lambda: len(parts.router.fleet.members) == 1)
        answer = await client.post(PATH, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_prefill")
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "0.32.0"}, "M6: another version"),
        ({"block_tokens": 256}, "push: decode's blocks are larger"),
    ],
)
async def test_engines_that_cannot_be_paired_are_refused(changes, why):
    async with site() as (client, _, (d,), parts):
        await ready(parts, 2)
        for name, value in changes.items():
            setattr(d, name, value)
        await d.restart()
        await until(lambda: not parts.router.fleet.serves and len(parts.router.fleet.members) == 2)
        answer = await client.post(PATH, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_pair"), why


async def test_a_server_without_a_connector_prefills_for_nobody():
    async with site(has_connector=False) as (client, (p,), _, parts):
        await until(lambda: len(parts.router.fleet.members) == 2)
        answer = await client.post(PATH, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_pair")
        assert len(p.probes) == 1 and not p.seen


async def test_plain_servers_alone_do_everything():
    async with site(prefills=0, decodes=2, has_connector=False) as (client, _, decodes, parts):
        await ready(parts, 2)
        assert text_of(await client.post(PATH, json=BODY)) == "local"
        assert not any(d.probes for d in decodes)


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 2},
        {"best_of": 2},
        {"use_beam_search": True},
        {"prompt_logprobs": 1},
        {"prompt": ["a", "b"]},
        {"echo": True, "logprobs": 1},
    ],
)
async def test_what_cannot_be_split_goes_to_decode_alone(extra):
    async with site() as (client, (p,), (d,), parts):
        await ready(parts, 2)
        assert text_of(await client.post(PATH, json=BODY | extra)) == "local"
        assert not p.seen and "kv_transfer_params" not in d.seen[0].body
