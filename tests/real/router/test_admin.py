"""What operators see and order, over HTTP."""

import asyncio
import json
import os
import signal

import pytest

from router.bench.mock_engine import MockEngine
from router.cli.local_fleet import free_port
from router.contract.instance import Role
from tests.support.router_process import router_process
from tests.support.routers import BODY, PATH, rig, until


async def test_a_drained_instance_gets_nothing_new_until_it_is_undrained():
    async with rig(num_decode=2) as r:
        asked = await r.client.post("/admin/drain", json={"instance_id": "d0"})
        assert (asked.status_code, asked.json()) == (200, {"instance_id": "d0", "draining": True, "shared": False})
        for _ in range(8):
            assert (await r.client.post(PATH, json=BODY)).status_code == 200
        assert (len(r.decodes[0].seen), len(r.decodes[1].seen)) == (0, 8)
        fleet = (await r.client.get("/admin/fleet")).json()
        assert fleet["drained"] == ["d0"]
        assert {one["instance_id"]: one["draining"] for one in fleet["instances"]} == {
            "d0": True,
            "d1": False,
            "p0": False,
        }
        await r.client.post("/admin/drain", json={"instance_id": "d1"})
        refused = await r.client.post(PATH, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_decode")
        await r.client.post("/admin/undrain", json={"instance_id": "d0"})
        assert (await r.client.post(PATH, json=BODY)).status_code == 200
        assert len(r.decodes[0].seen) == 1


@pytest.mark.needs("redis")
async def test_what_one_router_is_told_all_of_them_obey(redis_url, namespace):
    shared = {"store": redis_url, "namespace": namespace}
    async with rig(num_decode=2, **shared) as one:
        urls = {"prefill": (one.prefill.url,), "decode": tuple(engine.url for engine in one.decodes)}
        async with rig(num_prefill=0, num_decode=0, static=False, **urls, **shared) as other:
            told = await one.client.post("/admin/drain", json={"instance_id": "d0"})
            assert told.json()["shared"] is True
            await one.client.post("/admin/mode", json={"mode": "pull"})
            await until(lambda: other.parts.governor.orders.mode == "pull")
            assert (await other.client.post(PATH, json=BODY)).status_code == 200
            assert not one.decodes[0].seen
            assert "remote_block_ids" in one.decodes[1].seen[0].fields["kv_transfer_params"]
            await other.client.post("/admin/undrain", json={"instance_id": "d0"})
            await until(lambda: not one.parts.governor.orders.drained)


async def test_the_mode_is_ordered_and_given_back():
    async with rig() as r:
        assert (await r.client.post("/admin/mode", json={"mode": "local"})).status_code == 200
        await r.client.post(PATH, json=BODY)
        assert not r.prefill.seen
        assert (await r.client.get("/admin/fleet")).json()["mode"] == "local"
        await r.client.post("/admin/mode", json={"mode": None})
        await r.client.post(PATH, json=BODY)
        await until(lambda: len(r.prefill.seen) == 1)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("drain", {"instance_id": "nobody"}, 404, "instance_id"),
        ("undrain", {"instance_id": "nobody"}, 404, "instance_id"),
        ("mode", {"mode": "sideways"}, 400, "mode"),
        ("mode", {"mod": "pull"}, 400, "mode"),
        ("drain", {}, 400, "instance_id"),
    ],
)
async def test_orders_that_make_no_sense_are_refused(path, body, status, param):
    async with rig() as r:
        answer = await r.client.post(f"/admin/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert not r.parts.governor.orders.drained and not r.parts.governor.orders.mode


async def test_the_settings_in_force_are_shown_without_secrets():
    async with rig(deployment_key="0123456789abcdef", next_token_s=7.0) as r:
        answer = await r.client.get("/admin/config")
        assert (answer.json()["next_token_s"], answer.json()["mode"]) == (7.0, "push")
        assert "0123456789abcdef" not in answer.text


@pytest.mark.parametrize("data_path", ["hook", "asgi"])
async def test_m5_paths_that_command_engines_are_never_passed_on(data_path):
    async with rig(data_path=data_path) as r:
        for path in ("/sleep", "/wake_up", "/collective_rpc", "/update_weights", "/flush_cache", "/reset_prefix_cache"):
            for method in ("GET", "POST"):
                for spelled in (path, "/v1" + path, "/v1/.." + path, "/" + path, path + "?level=1"):
                    answer = await r.client.request(method, r.url + spelled, json={})
                    assert answer.status_code == 404, spelled
                    assert answer.json()["error"]["code"] == "not_found"
        assert b"tandem_" in (await r.client.get("/metrics")).content, "its own, and no engine's"
        assert not any(engine.seen for engine in r.engines)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_m5_operators_paths_are_on_a_port_of_their_own_where_there_is_one(workers):
    engine = MockEngine(Role.BOTH, "b0")
    url, port = await engine.start(), free_port("127.0.0.1")
    async with router_process("--decode", url, "--metrics-port", str(port), "--workers", workers) as process:
        assert (await process.client.post(PATH, json=BODY)).status_code == 200
        for path in ("/metrics", "/admin/fleet", "/ui"):
            refused = await process.client.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
            assert (await process.client.get(f"http://127.0.0.1:{port}{path}")).status_code == 200
    await engine.stop()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_process_takes_changed_settings_without_losing_anybody(tmp_path, workers):
    engine = MockEngine(Role.BOTH, "b0")
    settings = {"total_s": 9, "decode": [await engine.start()], "workers": int(workers)}
    config = tmp_path / "router.json"
    config.write_text(json.dumps(settings))
    async with router_process("--config", str(config)) as process:

        async def shown():
            return (await process.client.get("/admin/config")).json()["total_s"]

        assert await shown() == 9
        config.write_text(json.dumps(settings | {"total_s": 8}))
        os.kill(process.process.pid, signal.SIGHUP)
        async with asyncio.timeout(20):
            while await shown() != 8:
                await asyncio.sleep(0.02)
        assert (await process.client.post(PATH, json=BODY)).status_code == 200
    await engine.stop()
