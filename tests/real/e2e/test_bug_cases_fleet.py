"""Troubles that other routers had (`bug_cases.md`), with unequal or unresponsive members, on tiny real engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from router.cli.local_fleet import free_port
from router.contract.ids import Epoch, InstanceId, engine_id_of
from router.contract.instance import Instance
from router.store.codec import decode_instance
from router.store.connection import connect
from router.store.fleet import FleetStore
from tests.support.chaos_load import ChaosLoad, Verdict, cases
from tests.support.chaos_process import Victim
from tests.support.chaos_site import ChaosSite

pytestmark = [
    pytest.mark.needs("nixl", "redis"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]
ENGINES = {
    "prefill-0": "--role prefill --no-prefix-cache --max-context-tokens 256",
    "decode-0": "--role decode --no-prefix-cache",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosSite]:
    async with ChaosSite(tmp_path_factory.mktemp("site"), ENGINES, 1) as opened:
        yield opened


async def test_b8_a_prompt_that_prefill_refuses_gives_no_token(site: ChaosSite) -> None:
    (router,) = site.routers
    before = (await site.metrics(site.victims["decode-0"]))["generation_tokens_total"]
    body = {"model": "tiny", "prompt": [7] * 300, "max_tokens": 8}
    async with httpx.AsyncClient(base_url=router.url, timeout=30) as client:
        for stream in (False, True):
            answer = await client.post("/v1/completions", json=body | {"stream": stream})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert (await site.wait_quiet(10.0))[0] == {}
    assert (await site.metrics(site.victims["decode-0"]))["generation_tokens_total"] == before


async def test_e14_a_peer_that_accepts_and_never_answers_costs_nobody_else_anything(site: ChaosSite) -> None:
    async with mute_listener() as (port, callers):
        redis = connect(site.store_url)
        fleet = FleetStore(redis)
        real = await instance_of(site.victims["decode-0"])
        assert real.kv is not None
        name, epoch = InstanceId("decode-mute"), Epoch(1)
        identity = replace(real.kv, engine_id=engine_id_of(name, epoch), side_channel_host="127.0.0.1")
        # Not placeable, so that only the handshake of prefill's shim meets it.
        mute = replace(real, instance_id=name, epoch=epoch, url=f"http://127.0.0.1:{port}", draining=True)
        await fleet.register(replace(mute, kv=replace(identity, side_channel_port=port)), 60.0)
        await asyncio.wait_for(callers.acquire(), 20.0)
        short = [case for case in cases(8) if len(case.prompt) + len(case.answer) < 256]
        load = ChaosLoad(site.routers, short, seed=1)
        results = await asyncio.gather(*(load.send(leaving=0.0) for _ in range(20)))
        load.close()
        assert [result.verdict for result in results] == [Verdict.SERVED] * 20
        await redis.aclose()
        assert (await site.wait_quiet(10.0))[0] == {}


@asynccontextmanager
async def mute_listener() -> AsyncIterator[tuple[int, asyncio.Semaphore]]:
    """Accepts connections and says nothing; the semaphore counts those that have brought bytes."""
    callers = asyncio.Semaphore(0)
    over = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        callers.release()
        await over.wait()
        writer.close()

    port = free_port("127.0.0.1")
    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield port, callers
    finally:
        server.close()
        over.set()


async def instance_of(victim: Victim) -> Instance:
    async with httpx.AsyncClient() as client:
        said = decode_instance((await client.get(f"{victim.url}/kv/instance")).content)
    assert said is not None
    return said
