"""Wrong values are refused, by the schema or with one sentence that says what to do."""

import pytest

from tests.support.charts import Refused, render

pytestmark = pytest.mark.needs("chart")
KEYS = {"deploymentKey": {"existingSecret": "keys"}}
VLLM = {"engine": "vllm", "image": "vllm:1", "model": "m"}


def pool(**fields):
    return KEYS | {"pools": {"prefill": fields}}


REFUSED = {
    "negative replicas": ({"router": {"replicas": -1}}, "/router/replicas"),
    "negative replicas of a pool": (pool(replicas=-2), "/pools/prefill/replicas"),
    "unknown mode": ({"router": {"config": {"mode": "shove"}}}, "/router/config/mode"),
    "unknown policy": ({"router": {"config": {"decode_policy": "best"}}}, "/router/config/decode_policy"),
    "unknown setting of the router": ({"router": {"config": {"totl_s": 1}}}, "totl_s"),
    "a setting that the chart makes": ({"router": {"config": {"store": "redis://x"}}}, "store"),
    "a secret among settings": ({"router": {"config": {"admin_key": "x"}}}, "admin_key"),
    "negative deadline": ({"router": {"config": {"total_s": -1}}}, "/router/config/total_s"),
    "unknown setting of the shim": (pool(shim={"block_token": 16}), "block_token"),
    "unknown role": (pool(role="encode"), "/pools/prefill/role"),
    "unknown engine": (pool(engine="sglang"), "/pools/prefill/engine"),
    "unknown value": (pool(replcas=1), "replcas"),
    "a pool's name that no object can have": (KEYS | {"pools": {"Prefill_1": {}}}, "Prefill_1"),
    "unknown connector": (pool(kv={"connector": "tcp"}), "/pools/prefill/kv/connector"),
    "store of another kind": ({"redis": {"external": {"url": "http://x"}}}, "/redis/external/url"),
    "an engine without an address": ({"bringYourOwn": {"engines": [{"role": "decode"}]}}, "url"),
    "EFA with no device": (KEYS | {"pools": {"decode": VLLM | {"efa": {"enabled": True, "count": 0}}}}, "/efa/count"),
    "EFA without GPUs": (pool(efa={"enabled": True}), "efa is enabled without devices; set efa.count"),
    "EFA by UCX": (pool(**VLLM, efa={"enabled": True}), "kv.backend must be LIBFABRIC"),
    "no deployment key": ({}, "kubectl create secret generic tandem-keys"),
    "no secret for keys": (KEYS | {"router": {"auth": {"apiKeys": True}}}, "router.auth.existingSecret must name"),
    "no store": (KEYS | {"redis": {"enabled": False}}, "need a store"),
    "two stores": (KEYS | {"redis": {"external": {"url": "redis://x"}}}, "set redis.enabled to false"),
    "keep-alive below the router's": (pool(keepAliveSeconds=8), "must be at least 5 above router.config.engine_idle_s"),
    "router's above the keep-alive": (KEYS | {"router": {"config": {"engine_idle_s": 60}}}, "keepAliveSeconds is 30"),
    "grace below a request": (KEYS | {"router": {"graceSeconds": 60}}, "would cut requests"),
    "an engine over pods of a Deployment": (pool(**VLLM, groupSize=2), "needs kind: LeaderWorkerSet"),
    "ranks that cannot be divided": (
        pool(**VLLM, kind="LeaderWorkerSet", groupSize=2, parallel={"dp": 3, "ep": True}),
        "cannot be divided among groupSize = 2",
    ),
    "ranks without experts": (pool(**VLLM, parallel={"dp": 2}), "use replicas instead"),
    "ranks of the reference engine": (pool(parallel={"tp": 2}), "use engine: vllm"),
    "arguments of the reference engine": (pool(args=["--x"]), "the reference engine takes shim"),
    "a group with a shim": (pool(**VLLM | {"engine": "vllm-shim"}, parallel={"dp": 2}), "one worker without tp"),
    "vLLM without an image": (pool(engine="vllm"), "image must name an image"),
    "huge pages without memory": (
        pool(hugepages2Mi="1Gi", resources={"limits": {"memory": None}}),
        "needs resources.limits.memory",
    ),
    "two selectors": (pool(**VLLM) | {"bringYourOwn": {"selector": "app=x"}}, "exclude each other"),
    "an Ingress for nobody": (KEYS | {"router": {"ingress": {"enabled": True}}}, "router.ingress.host"),
    "a route without a gateway": (KEYS | {"router": {"httpRoute": {"enabled": True}}}, "httpRoute.parentRefs"),
    "nobody": (
        {"pools": {"prefill": {"enabled": False}, "decode": {"enabled": False}}, "redis": {"enabled": False}},
        "There are no engines",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_values_are_refused(case):
    values, said = REFUSED[case]
    with pytest.raises(Refused) as refused:
        render("", values=values)
    assert said in str(refused.value)


def test_the_defaults_are_not():
    assert render("", values=KEYS).one("Deployment", "tandem-decode")
