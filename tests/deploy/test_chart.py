"""What the chart must say, value by value; cases G of the table in tests/README.md."""

import json
import re

import pytest
import yaml

from router.settings import Settings
from tests.support.charts import CHART, EXAMPLES, render
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.needs("chart")
KEYS = {"deploymentKey": {"existingSecret": "keys"}}
EFA = "vpc.amazonaws.com/efa"


def containers(rendered):
    """(workload, container) of every workload, init containers included."""
    for name, template in rendered.pods().items():
        for one in [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]:
            yield name, one


def engine(rendered, pool):
    return rendered.pods()[f"tandem-{pool}"]["spec"]["containers"][0]


def env_of(container):
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def flags_of(container):
    return dict(word[2:].partition("=")[::2] for word in container["args"] if word.startswith("--"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_g1_no_host_path_anywhere(example):
    for template in render(example).pods().values():
        assert all("hostPath" not in volume for volume in template["spec"].get("volumes", ()))


@pytest.mark.parametrize("example", ["p5en-1p1d", "p5en-moe-ep"])
def test_g1_g5_efa_comes_as_a_resource_with_locked_memory_and_no_privileges(example):
    rendered = render(example)
    for pool in ("prefill", "decode"):
        pod = rendered.pods()[f"tandem-{pool}"]["spec"]
        for one in (pod["initContainers"][0], pod["containers"][0]):
            limits, requests = one["resources"]["limits"], one["resources"]["requests"]
            assert (limits[EFA], limits["nvidia.com/gpu"]) == (16, 8)
            assert limits["hugepages-2Mi"] == requests["hugepages-2Mi"] == "5120Mi"
            assert limits["memory"] == requests["memory"]
            security = one["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
            assert "privileged" not in security
            assert env_of(one)["FI_PROVIDER"] == "efa"
            assert env_of(one)["LD_LIBRARY_PATH"].startswith("/opt/amazon/efa/lib:")
        shm = next(one for one in pod["volumes"] if one["name"] == "shm")
        assert shm["emptyDir"]["medium"] == "Memory"
        assert shm["emptyDir"]["sizeLimit"]
        assert pod["initContainers"][0]["command"] == ["tandem", "doctor", "--preflight", "--expect-efa", "16"]


def test_efa_devices_follow_from_gpus_unless_they_are_given():
    values = {"engine": "vllm", "image": "v:1", "kv": {"backend": "LIBFABRIC"}, "parallel": {"tp": 4}}
    for efa, count in (({"perGpu": 4}, 16), ({"perGpu": 2}, 8), ({"count": 15}, 15)):
        made = render("", values={"pools": {"prefill": values | {"efa": {"enabled": True} | efa}}} | KEYS)
        assert engine(made, "prefill")["resources"]["limits"][EFA] == count
    switched = render("", values={"pools": {"prefill": values | {"privileged": True}}} | KEYS)
    assert engine(switched, "prefill")["securityContext"]["privileged"] is True


@pytest.mark.parametrize("example", EXAMPLES)
def test_g6_loading_is_waited_for_and_liveness_comes_after(example):
    for name, one in containers(render(example)):
        if name.endswith(("prefill", "decode")) and one["name"] == "engine":
            startup = one["startupProbe"]
            least_s = 300 if example == "kind" else 20 * 60
            assert startup["periodSeconds"] * startup["failureThreshold"] >= least_s
            assert startup["httpGet"] == one["readinessProbe"]["httpGet"]
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            assert "initialDelaySeconds" not in one.get(probe, {})


@pytest.mark.parametrize("example", EXAMPLES)
def test_g8_the_timers_of_a_rollout_fit(example):
    rendered = render(example)
    config = yaml.safe_load(rendered.one("ConfigMap", "tandem-router")["data"]["router.yaml"])
    pods = rendered.pods()
    total_s = config.get("total_s", Settings().total_s)
    assert config["grace_s"] >= total_s
    router = pods["tandem-router"]["spec"]
    assert router["terminationGracePeriodSeconds"] >= config["pre_stop_s"] + config["grace_s"] + 10
    for name, template in pods.items():
        if not name.endswith(("prefill", "decode")):
            continue
        grace_s, one = template["spec"]["terminationGracePeriodSeconds"], template["spec"]["containers"][0]
        if one["command"] == ["tandem", "shim"]:
            drain_s = float(env_of(one)["TANDEM_SHIM_DRAIN_FOR_S"])
            assert grace_s >= drain_s + 10
        else:
            hook = one["lifecycle"]["preStop"]["exec"]["command"]
            settle_s, drain_s = (float(hook[hook.index(flag) + 1]) for flag in ("--settle-s", "--drain-s"))
            assert settle_s > 20.0, "a router that has missed a watch lists pods every 20 s"
            assert grace_s >= settle_s + drain_s + float(flags_of(one)["shutdown-timeout"]) + 10
        assert drain_s >= total_s
    for one in rendered.all("Deployment"):
        if not one["metadata"]["name"].endswith("redis"):
            assert one["spec"]["minReadySeconds"] > 2, (
                "routers look for engines, and Services for routers, at their pace"
            )
    budgets = [one["spec"]["selector"]["matchLabels"] for one in rendered.all("PodDisruptionBudget")]
    for name, template in pods.items():
        if not name.endswith("redis"):
            labels = template["metadata"]["labels"].items()
            assert any(selector.items() <= labels for selector in budgets), name


@pytest.mark.parametrize("example", EXAMPLES)
def test_g9_engines_keep_connections_longer_than_routers_do(example):
    rendered = render(example)
    config = yaml.safe_load(rendered.one("ConfigMap", "tandem-router")["data"]["router.yaml"])
    idle_s = config.get("engine_idle_s", Settings().engine_idle_s)
    for _, one in containers(rendered):
        if one["name"] == "engine":
            env = env_of(one)
            kept_s = env.get("TANDEM_SHIM_KEEP_ALIVE_S") or env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]
            assert float(kept_s) >= idle_s + 5


@pytest.mark.parametrize("example", EXAMPLES)
def test_containers_have_least_rights(example):
    rendered = render(example)
    for name, template in rendered.pods().items():
        assert template["spec"]["enableServiceLinks"] is False
        for one in template["spec"]["containers"]:
            security = one["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"]["drop"] == ["ALL"]
            assert one["resources"]["limits"]["memory"]
        if name.endswith(("router", "redis")):
            assert security["readOnlyRootFilesystem"] is True
            assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    rules = [rule for role in rendered.all("Role") for rule in role["rules"]]
    assert rules in ([], [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}])
    mounted = {name: one["spec"]["automountServiceAccountToken"] for name, one in rendered.pods().items()}
    assert [name for name, token in mounted.items() if token] == (["tandem-router"] if rules else [])
    assert not rendered.all("ClusterRole")


def test_addresses_are_the_pods_own():
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    env = env_of(engine(render("p5en-1p1d"), "prefill"))
    assert (env["VLLM_NIXL_SIDE_CHANNEL_HOST"], env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == (address, "5600")
    env = env_of(engine(render("kind"), "prefill"))
    assert (env["POD_IP"], env["TANDEM_SHIM_ADVERTISE_HOST"]) == (address, "$(POD_IP)")


def test_connector_and_roles_of_plain_vllm():
    rendered = render("p5en-1p1d")
    for pool, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        flags = flags_of(engine(rendered, pool))
        transfer = json.loads(flags["kv-transfer-config"])
        assert (transfer["kv_connector"], transfer["kv_role"]) == ("NixlPushConnector", role)
        assert transfer["kv_connector_extra_config"]["backends"] == ["LIBFABRIC"]
        assert flags["tensor-parallel-size"] == "8"
        assert "data-parallel-size" not in flags
    pull = render("p5en-1p1d", "--set", "poolDefaults.kv.connector=pull")
    assert "NixlConnector" in flags_of(engine(pull, "decode"))["kv-transfer-config"]


def test_each_rank_of_a_group_is_a_server_that_routers_see():
    rendered = render("p5en-moe-ep")
    group = rendered.one("LeaderWorkerSet", "tandem-decode")["spec"]["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    pod, one = group["workerTemplate"], group["workerTemplate"]["spec"]["containers"][0]
    ports = [str(port["containerPort"]) for port in one["ports"] if port["name"].startswith("http")]
    assert pod["metadata"]["annotations"]["tandem/ports"] == ",".join(ports) == ",".join(map(str, range(8000, 8008)))
    assert (pod["metadata"]["labels"]["tandem/role"], pod["metadata"]["labels"]["tandem/engine"]) == ("decode", "vllm")
    flags = flags_of(one)
    assert (flags["data-parallel-size"], flags["data-parallel-size-local"]) == ("16", "8")
    assert "enable-expert-parallel" in flags
    assert "LWS_WORKER_INDEX * 8" in one["command"][2]
    monitor = rendered.one("ServiceMonitor", "tandem-decode")["spec"]
    assert len(monitor["endpoints"]) == 8
    service = rendered.one("Service", "tandem-decode")["spec"]["ports"]
    assert {one["port"] for one in monitor["endpoints"]} == {one["name"] for one in service}


def test_placement():
    rendered = render("p5en-1p1d", "--set", "poolDefaults.placement.zones={use1-az4}")
    affinity = rendered.pods()["tandem-prefill"]["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {one["key"]: one["values"] for one in terms[0]["matchExpressions"]} == {
        "topology.kubernetes.io/zone": ["use1-az4"],
        "tandem/placement-group": ["tandem-p5en"],
    }
    keys = [
        affinity[kind]["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"]
        for kind in ("podAffinity", "podAntiAffinity")
    ]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]


def test_scale_in_goes_one_engine_at_a_time_and_waits_for_its_end():
    rendered = render("p5en-moe-ep")
    for pool in ("prefill", "decode"):
        scaled = rendered.one("ScaledObject", f"tandem-{pool}")["spec"]
        down = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        grace_s = rendered.pods()[f"tandem-{pool}"]["spec"]["terminationGracePeriodSeconds"]
        assert [(one["type"], one["value"]) for one in down["policies"]] == [("Pods", 1)]
        assert down["policies"][0]["periodSeconds"] >= min(grace_s, 1800)
        workload = rendered.one("LeaderWorkerSet", f"tandem-{pool}")
        assert "replicas" not in workload["spec"], "the chart and the autoscaler would fight over it"
        assert (scaled["scaleTargetRef"]["kind"], scaled["scaleTargetRef"]["name"]) == (
            "LeaderWorkerSet",
            f"tandem-{pool}",
        )


def test_what_scales_a_pool_of_shims():
    values = KEYS | {"poolDefaults": {"autoscaling": {"enabled": True}}}
    rendered = render("", values=values)
    queries = {
        pool: [one["metadata"]["query"] for one in rendered.one("ScaledObject", f"tandem-{pool}")["spec"]["triggers"]]
        for pool in ("prefill", "decode")
    }
    assert len(queries["prefill"]) == 1
    assert "tandem_shim_queued_prompt_tokens" in queries["prefill"][0]
    assert "tandem_shim_free_blocks" in queries["decode"][0]
    assert "tandem_tpot_seconds_bucket" in queries["decode"][1]
    assert 'service="tandem-router"' in queries["decode"][1]


def test_g10_what_scales_a_pool_is_measured():
    told = "".join((ROOT / path).read_text() for path in ("router/observe/README.md", "engine_shim/serve/README.md"))
    known = set(re.findall(r"`(tandem_\w+)`", told))
    rendered = render("", values=KEYS | {"poolDefaults": {"autoscaling": {"enabled": True}}})
    for scaled in rendered.all("ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            named = re.findall(r"tandem_\w+", trigger["metadata"]["query"].split("{")[0])
            assert named
            assert {name.removesuffix("_bucket") for name in named} <= known


def test_only_routers_and_engines_reach_engines_and_store():
    policies = {one["metadata"]["name"]: one["spec"]["ingress"] for one in render("kind").all("NetworkPolicy")}
    for name in ("tandem-engine", "tandem-redis"):
        peer = policies[name][0]["from"][0]["podSelector"]
        assert peer["matchLabels"]["app.kubernetes.io/instance"] == "tandem"
        assert peer["matchExpressions"][0]["values"] == ["router", "engine", "test"]
        assert all(rule["from"] for rule in policies[name])
    assert "ports" not in policies["tandem-engine"][0], "NIXL opens ports of its own"
    assert not render("kind", "--set", "networkPolicy.enabled=false").all("NetworkPolicy")


def test_stores_and_their_secrets():
    def store(*arguments, example=""):
        rendered = render(example, *arguments)
        return env_of(rendered.pods()["tandem-router"]["spec"]["containers"][0])

    keys = ("--set", "deploymentKey.existingSecret=k")
    assert store(*keys)["TANDEM_STORE"] == "redis://tandem-redis:6379/0"
    env = store(*keys, "--set", "redis.existingSecret=r")
    assert env["TANDEM_STORE"] == "redis://:$(REDIS_PASSWORD)@tandem-redis:6379/0"
    assert list(env).index("REDIS_PASSWORD") < list(env).index("TANDEM_STORE"), "a name must stand before its use"
    own = store(example="bring-your-own-vllm")["TANDEM_STORE"]
    assert own == "rediss://redis.data.svc:6379/0?ssl_ca_certs=/etc/tandem/store-ca/ca.crt"
    hidden = ("--set", "redis.enabled=false,redis.external.existingSecret=r")
    assert store(*keys, *hidden)["TANDEM_STORE"] == {"secretKeyRef": {"name": "r", "key": "url"}}


def test_routers_are_spread_and_scaled():
    rendered = render("bring-your-own-vllm")
    spread = rendered.pods()["tandem-router"]["spec"]["topologySpreadConstraints"]
    assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    assert "replicas" not in rendered.one("Deployment", "tandem-router")["spec"]
    assert rendered.one("HorizontalPodAutoscaler", "tandem-router")["spec"]["minReplicas"] == 2
    assert rendered.one("HTTPRoute", "tandem-router")["spec"]["hostnames"] == ["llm.example.com"]
    values = ("--set", "router.ingress.enabled=true,router.ingress.host=a.example.com,router.tls.existingSecret=t")
    made = render("kind", *values)
    assert made.one("Ingress", "tandem-router")["spec"]["rules"][0]["host"] == "a.example.com"
    assert made.pods()["tandem-router"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_a_changed_setting_restarts_routers_unless_told_otherwise():
    def mark(*arguments):
        return (
            render("kind", *arguments).pods()["tandem-router"]["metadata"].get("annotations", {}).get("tandem/config")
        )

    assert mark() != mark("--set", "router.config.mode=pull")
    assert mark("--set", "router.restartOnChange=false") is None


def test_rules_and_dashboards_are_those_of_the_files():
    rendered = render("p5en-1p1d")
    groups = rendered.one("PrometheusRule", "tandem")["spec"]["groups"]
    written = CHART / "files" / "rules.yaml"
    own = yaml.safe_load(written.read_text())["groups"] if written.exists() else []
    assert groups[:-1] == own
    assert {rule["record"] for rule in groups[-1]["rules"]} == {"tandem:slo_ttft_seconds", "tandem:slo_tpot_seconds"}
    maps = [one for one in rendered.all("ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    texts = {name: text for one in maps for name, text in one["data"].items()}
    files = {path.name: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in texts.items()} == {
        name: json.loads(text) for name, text in files.items()
    }
    jobs = {
        one["endpoints"][0]["relabelings"][0]["replacement"]
        for one in (
            monitor["spec"]
            for monitor in render("kind", "--set", "monitoring.serviceMonitor.enabled=true").all("ServiceMonitor")
        )
    }
    assert jobs == {"tandem-router", "tandem-shim"}
