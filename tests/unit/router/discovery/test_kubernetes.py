"""Pods of a scripted API server. What engines do themselves is tested in test_servers.py."""

import asyncio
import json
import shutil
import ssl
from contextlib import asynccontextmanager

import pytest

from router.discovery import kubernetes as module
from router.discovery.kube_api import KubeApi, KubePlace
from router.discovery.kubernetes import KubernetesPods
from tests.support.certificates import Certificates
from tests.support.kube_server import KubeServer, pod
from tests.support.routers import until


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "BACK_OFF_S", 0.01)


@pytest.fixture
async def api():
    server = KubeServer()
    server.put(pod("p0", 1, "prefill"))
    server.put(pod("d0", 2, "decode"))
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def following(server, account):
    pods = KubernetesPods(KubeApi(KubePlace(server.url, "ns", account), "app=engine"))
    task = asyncio.create_task(pods.follow())
    try:
        yield pods
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(pods):
    return sorted(entry.name.partition("/")[0] for entry in pods.entries())


async def test_pods_are_listed_then_watched_from_that_version(api, tmp_path):
    async with following(api, tmp_path) as pods:
        assert pods.entries() == [], "a router starts with nobody"
        await until(lambda: names(pods) == ["d0", "p0"] and api.num_watches)
        assert api.queries[0]["resourceVersion"] == ["1"]
        api.put(pod("d1", 3, "decode"))
        await until(lambda: names(pods) == ["d0", "d1", "p0"])
        api.remove("uid-of-d0")
        await until(lambda: names(pods) == ["d1", "p0"])
        assert api.lists == 1


async def test_c7_a_deletion_that_falls_between_two_watches_is_seen(api, tmp_path):
    async with following(api, tmp_path) as pods:
        await until(lambda: api.num_watches)
        api.cut()
        api.remove("uid-of-p0", told=False)
        await until(lambda: names(pods) == ["d0"])


async def test_c7_a_stream_that_is_silent_for_ever_is_left(api, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RELIST_S", 0.1)
    monkeypatch.setattr(module, "SPARE_S", 0.1)
    async with following(api, tmp_path) as pods:
        await until(lambda: api.num_watches)
        api.remove("uid-of-p0", told=False)
        await until(lambda: names(pods) == ["d0"])
        assert not pods.bad


async def test_c8_what_a_pod_is_follows_the_pod(api, tmp_path):
    async with following(api, tmp_path) as pods:
        await until(lambda: api.num_watches)
        (before,) = [entry for entry in pods.entries() if entry.role == "prefill"]
        api.put(pod("p0", 1, "prefill", ready=False))
        await until(lambda: names(pods) == ["d0"])
        api.put(pod("p0", 1, "decode"))
        await until(lambda: [entry.role for entry in pods.entries()] == ["decode", "decode"])
        api.remove("uid-of-p0")
        api.put(pod("p0", 1, "prefill", uid="another"))
        await until(lambda: [e.url for e in pods.entries() if e.role == "prefill"] == [before.url])
        (after,) = [entry for entry in pods.entries() if entry.role == "prefill"]
        assert after.name != before.name, "the same address, and another instance"


async def test_c9_a_terminating_pod_leaves_at_once(api, tmp_path):
    async with following(api, tmp_path) as pods:
        await until(lambda: api.num_watches)
        leaving = pod("d0", 2, "decode")
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        api.put(leaving)
        await until(lambda: names(pods) == ["p0"])


async def test_c10_an_old_version_is_answered_by_one_list(api, tmp_path):
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    api.watch_answers = [json.dumps(gone).encode() + b"\n", 504, 410]
    async with following(api, tmp_path) as pods:
        await until(lambda: api.num_watches)
        assert api.lists == 4, "one for each error, and the first"
        assert [query["resourceVersion"] for query in api.queries] == [["1"], ["2"], ["3"], ["4"]]
        assert names(pods) == ["d0", "p0"] and not pods.bad


async def test_an_api_server_that_is_away_changes_nothing(api, tmp_path, caplog):
    async with following(api, tmp_path) as pods:
        await until(lambda: api.num_watches)
        api.list_status = 500
        api.cut()
        await until(lambda: pods.bad)
        assert names(pods) == ["d0", "p0"] and "stay in use" in caplog.text
        api.list_status = 200
        api.remove("uid-of-d0", told=False)
        await until(lambda: not pods.bad and names(pods) == ["p0"])


async def test_a_pod_that_makes_no_sense_harms_no_other(api, tmp_path, caplog):
    api.put(pod("x", 9, "both", contract="nonsense"))
    async with following(api, tmp_path) as pods:
        await until(lambda: names(pods) == ["d0", "p0"] and api.num_watches)
        api.put(pod("x", 9, "both", contract="nonsense"))
        api.put(pod("d1", 3, "decode"))
        await until(lambda: "d1" in names(pods))
        assert caplog.text.count("The pod x cannot be used") == 1


async def test_the_account_opens_the_api_over_tls_and_its_token_may_change(tmp_path):
    made = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*made.issue("server"))
    shutil.copy(made.authority, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("one\n")
    server = KubeServer(token="one")
    server.put(pod("p0", 1, "prefill"))
    await server.start(context)
    async with following(server, tmp_path) as pods:
        await until(lambda: names(pods) == ["p0"] and server.num_watches)
        server.token = "two"
        (tmp_path / "token").write_text("two")
        server.put(pod("d0", 2, "decode"), told=False)
        server.cut()
        await until(lambda: names(pods) == ["d0", "p0"])
    await server.stop()
