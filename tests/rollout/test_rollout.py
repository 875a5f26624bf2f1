"""Everything is restarted under load, pod by pod, as a Deployment does it, with the chart's probes, hooks and graces.

No request fails: neither of plain vLLM, which only its preStop hook saves, nor of shims, which drain by themselves.
"""

import asyncio
import json

import pytest

from tests.support.charts import render
from tests.support.kubelet import node
from tests.support.pods import Cluster
from tests.support.rollout_load import Load

pytestmark = [pytest.mark.needs("chart"), pytest.mark.timeout(1800)]
SECRETS = {"tandem-keys": {"deployment-key": "0123456789abcdef0123456789abcdef"}}
STORE = "redis://tandem-redis:6379/0"
TIMERS = {"preStopSeconds": 3, "graceSeconds": 60}
CONFIG = {"total_s": 60, "attempts": 1, "connect_s": 10, "access_log": False}


async def rolled(on, load, workloads):
    """The load has gone on while each workload was restarted, one after the other."""
    replicas = {name: on.cluster.rendered.one("Deployment", name)["spec"]["replicas"] for name in workloads}
    first = [await on.start(name) for name in workloads for _ in range(replicas[name])]
    await on.ready(*first)
    while len(on.seen.get("tandem-router", ())) < 2:
        await asyncio.sleep(0.05)
    async with load.running(clients=4):
        for name in workloads:
            await on.roll(name)
    assert all(one.process.returncode is not None for one in first)
    return sum(load.served.values())


def loaded(on, model):
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 24, "ignore_eos": True}
    return Load(lambda: on.seen["tandem-router"], body)


def plain_vllm(drains):
    """Two pools of plain vLLM and the routers; without `drains` the hooks are as if somebody had left them out."""
    pool = {"engine": "vllm", "image": "stand-in", "model": "m", "kv": {"connector": "pull"}, "startupMinutes": 2}
    values = {
        "router": TIMERS | {"config": CONFIG | {"mode": "pull"}},
        "poolDefaults": pool | {"replicas": 2, "settleSeconds": 2, "drainSeconds": 60},
        "deploymentKey": {"existingSecret": "tandem-keys"},
    }
    rendered = render("", values=values)
    if not drains:
        for name in ("tandem-prefill", "tandem-decode"):
            del rendered.pods()[name]["spec"]["containers"][0]["lifecycle"]
    return rendered


@pytest.mark.parametrize("drains", [True, False])
async def test_plain_vllm_and_routers(drains, redis_url, tmp_path):
    cluster = Cluster(plain_vllm(drains), SECRETS, {STORE: redis_url})
    selector = "app.kubernetes.io/instance=tandem,tandem/engine=vllm"
    async with node(cluster, tmp_path, selector) as on:
        load = loaded(on, "m")
        workloads = (
            ("tandem-prefill", "tandem-decode", "tandem-router") if drains else ("tandem-decode", "tandem-router")
        )
        if not drains:
            await on.ready(await on.start("tandem-prefill"))
        num_served = await rolled(on, load, workloads)
        assert (on.killed, on.deaths) == ([], [])
        if drains:
            assert load.failures == []
            assert num_served > 50
        else:
            assert load.failures != [], "streams that are cut off must be noticed"


async def test_groups_of_a_leader_worker_set(redis_url, tmp_path):
    """Two engines of two pods each, every pod a rank that is a server of its own; a group comes and goes as a whole.

    With one group there are failures: nothing keeps the old one until routers have met the new one.
    """
    group = {"kind": "LeaderWorkerSet", "groupSize": 2, "parallel": {"tp": 1, "dp": 2, "ep": True}, "startupMinutes": 2}
    pool = {"engine": "vllm", "image": "stand-in", "model": "m", "kv": {"connector": "pull"}, "settleSeconds": 2}
    values = {
        "router": TIMERS | {"config": CONFIG | {"mode": "pull"}},
        "poolDefaults": pool | group | {"replicas": 2, "drainSeconds": 60},
        "deploymentKey": {"existingSecret": "tandem-keys"},
    }
    cluster = Cluster(render("", values=values), SECRETS, {STORE: redis_url})
    async with node(cluster, tmp_path, "app.kubernetes.io/instance=tandem,tandem/engine=vllm") as on:
        groups = {name: [await on.start_group(name) for _ in range(2)] for name in ("tandem-prefill", "tandem-decode")}
        first = [one for of_name in groups.values() for group in of_name for one in group]
        await on.ready(*first, *[await on.start("tandem-router") for _ in range(2)])
        while len(on.seen.get("tandem-router", ())) < 2:
            await asyncio.sleep(0.05)
        load = loaded(on, "m")
        async with load.running(clients=4):
            for name, old in groups.items():
                await on.roll_groups(name, old)
        assert all(one.process.returncode is not None for one in first)
        assert (load.failures, on.killed, on.deaths) == ([], [], [])
        assert sum(load.served.values()) > 20


async def test_shims_and_routers(redis_url, tmp_path):
    from tests.support.tiny_models import write_tiny_llama

    model = tmp_path / "model"
    model.mkdir()
    write_tiny_llama(model)
    values = {
        "router": TIMERS | {"config": CONFIG | {"attempts": 2}},
        "poolDefaults": {"model": str(model), "servedModel": "tiny", "drainSeconds": 60, "startupMinutes": 5},
    }
    values["poolDefaults"]["shim"] = {"threads": 1, "kv_bytes": 1 << 22}
    rendered = render("", values=values | {"deploymentKey": {"existingSecret": "tandem-keys"}})
    cluster = Cluster(json_of(rendered), SECRETS, {STORE: redis_url})
    async with node(cluster, tmp_path) as on:
        load = loaded(on, "tiny")
        num_served = await rolled(on, load, ("tandem-prefill", "tandem-decode", "tandem-router"))
        assert (load.failures, on.killed, on.deaths) == ([], [], [])
        assert num_served > 50


def json_of(rendered):
    """The same objects, none of them shared."""
    return type(rendered)(tuple(json.loads(json.dumps(one)) for one in rendered.objects))
