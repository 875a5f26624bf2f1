"""A router whose engines are pods of a scripted API server."""

import asyncio

import pytest

from router.discovery import server as server_module
from tests.support.kube_server import KubeServer, pod
from tests.support.routers import BODY, PATH, rig, until


def ported(engine, role, **fields):
    return pod(engine.name, int(engine.url.rpartition(":")[2]), role, **fields)


@pytest.fixture
async def cluster(tmp_path, monkeypatch):
    """(API server, settings)."""
    monkeypatch.setattr(server_module, "POLL_S", 0.02)
    server = KubeServer()
    await server.start()
    yield (
        server,
        {
            "static": False,
            "kubernetes_selector": "app=engine",
            "kubernetes_api": server.url,
            "kubernetes_namespace": "ns",
            "kubernetes_account": str(tmp_path),
            "fleet_poll_s": 0.02,
        },
    )
    await server.stop()


async def test_a_router_starts_with_nobody_and_serves_once_pods_are_ready(cluster):
    server, settings = cluster
    async with rig(**settings) as r:
        assert (await r.client.get("/readyz")).status_code == 503
        server.put(ported(r.prefill, "prefill", ready=False))
        server.put(ported(r.decode, "decode"))
        await until(lambda: len(r.parts.router.fleet.members) == 1)
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_prefill")
        server.put(ported(r.prefill, "prefill"))
        await until(lambda: r.parts.router.fleet.serves)
        assert (await r.client.post(PATH, json=BODY)).status_code == 200


async def test_c9_a_terminating_pod_gets_nothing_new_and_ends_what_it_has(cluster):
    server, settings = cluster
    async with rig(num_decode=2, **settings) as r:
        leaving, staying = r.decodes
        for engine, role in ((r.prefill, "prefill"), (leaving, "decode")):
            server.put(ported(engine, role))
        await until(lambda: r.parts.router.fleet.serves)
        r.behave(leaving, gap_s=0.05, num_events=16)
        streams = [asyncio.create_task(r.client.post(PATH, json=BODY | {"stream": True})) for _ in range(3)]
        await until(lambda: len(leaving.seen) == 3)
        server.put(ported(staying, "decode"))
        terminating = ported(leaving, "decode")
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        server.put(terminating)
        known = r.parts.router
        await until(lambda: {m.instance.url for m in known.fleet.members} == {r.prefill.url, staying.url})
        for _ in range(20):
            assert (await r.client.post(PATH, json=BODY)).status_code == 200
        assert (len(leaving.seen), len(staying.seen)) == (3, 20)
        for answer in await asyncio.gather(*streams):
            assert answer.content.endswith(b"data: [DONE]\n\n")
