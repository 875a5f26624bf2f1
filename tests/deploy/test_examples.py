"""Each example: linted, accepted by the API's schemas, as it is on record, and understood by our own commands."""

import json
import os
import subprocess

import pytest
import yaml

from tests.support import charts
from tests.support.pods import MOUNTED, Cluster, Pod, launch

pytestmark = pytest.mark.needs("chart")
SECRETS = {
    "tandem-keys": {"deployment-key": "0123456789abcdef0123456789abcdef"},
    "tandem-auth": {"api-keys": f"team:{'0' * 64}\n", "admin-key": "an-admin-key"},
    "redis-ca": {"ca.crt": ""},
}
UNDER_A_KUBELET = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    "KUBERNETES_SERVICE_HOST": "::1",
}


@pytest.mark.parametrize("example", [*charts.EXAMPLES, ""])
def test_helm_lint_finds_nothing(example):
    values = ("--values", str(charts.CHART / "examples" / f"{example}.yaml")) if example else ()
    charts.helm("lint", "--strict", "--quiet", str(charts.CHART), *values)


@pytest.mark.parametrize("example", charts.EXAMPLES)
def test_the_api_would_take_every_object(example):
    from tests.support.manifest_schemas import fault

    rendered = charts.render(example)
    assert [found for one in rendered.objects if (found := fault(one))] == []
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
    assert len(set(names)) == len(names)


def test_a_misspelt_field_is_noticed():
    from tests.support.manifest_schemas import fault

    for kind in ("Deployment", "LeaderWorkerSet", "ScaledObject", "ServiceMonitor", "PrometheusRule"):
        one = json.loads(json.dumps(charts.render("p5en-moe-ep").all(kind)[0]))
        one["spec"]["replicsa"] = 1
        assert "replicsa" in (fault(one) or ""), kind
    moe = json.loads(json.dumps(charts.render("p5en-moe-ep").all("LeaderWorkerSet")[0]))
    moe["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["ports"][0]["containerport"] = 1
    assert "containerport" in (fault(moe) or "")


@pytest.mark.parametrize("example", charts.EXAMPLES)
def test_plain_manifests_are_the_rendered_examples(example):
    assert charts.manifest_path(example).read_text() == charts.plain(example), "run `make chart`"


def test_the_schema_of_values_knows_every_setting():
    assert (charts.CHART / "values.schema.json").read_text() == charts.schema_text(), "run `make chart`"


@pytest.mark.parametrize(
    ("example", "effective"),
    [
        ("kind", {"mode": "push", "total_s": 120, "pre_stop_s": 5, "grace_s": 120, "kubernetes_selector": ""}),
        ("p5en-1p1d", {"mode": "push", "prefill_policy": "prefix", "decode_policy": "cost"}),
        ("p5en-moe-ep", {"mode": "push", "prefill_policy": "cost", "decode_policy": "cost", "total_s": 900}),
        (
            "bring-your-own-vllm",
            {
                "mode": "pull",
                "prefill_policy": "least_tokens",
                "decode_policy": "session",
                "kubernetes_namespace": "models",
            },
        ),
    ],
)
def test_g13_routers_have_in_force_what_the_example_says(example, effective, tmp_path):
    cluster = Cluster(charts.render(example), SECRETS)
    template = cluster.rendered.pods()["tandem-router"]
    container = template["spec"]["containers"][0]
    start = launch(cluster, Pod("router-0", "10.0.0.1", template, tmp_path), container, UNDER_A_KUBELET)
    checked = subprocess.run(
        (*start.argv, "--check-config"), env=start.env, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    said = json.loads(checked.stdout)
    assert {name: said["settings"][name] for name in effective} == effective
    assert said["settings"]["store"] == "(hidden)" or said["settings"]["store"].startswith("redis")
    own = charts.render(example).one("ConfigMap", "tandem-router")["data"].get("fleet.yaml", "engines: []")
    assert [one["url"] for one in said["engines"]] == [one["url"] for one in yaml.safe_load(own)["engines"]]


@pytest.mark.parametrize("example", ["p5en-1p1d", "p5en-moe-ep"])
def test_the_preflight_is_one_that_doctor_knows(example):
    from router.cli.doctor import _parser

    for pool in ("prefill", "decode"):
        command = charts.render(example).pods()[f"tandem-{pool}"]["spec"]["initContainers"][0]["command"]
        assert command[:2] == ["tandem", "doctor"]
        given = _parser().parse_args(command[2:])
        assert (given.preflight, given.expect_efa) == (True, 16)


def test_commands_in_a_routers_pod_find_the_store_where_shims_are():
    rendered = charts.render("kind")
    env = {
        name: {one["name"]: one for one in rendered.pods()[name]["spec"]["containers"][0]["env"]}
        for name in ("tandem-router", "tandem-decode")
    }
    router, shim = env["tandem-router"], env["tandem-decode"]
    assert router["TANDEM_NAMESPACE"]["value"] == shim["TANDEM_SHIM_NAMESPACE"]["value"]
    assert router["TANDEM_STORE"]["value"] == shim["TANDEM_SHIM_STORE"]["value"]
    assert router["TANDEM_DEPLOYMENT_KEY"]["valueFrom"] == shim["TANDEM_DEPLOYMENT_KEY"]["valueFrom"]


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_shims_understand_their_settings(pool, tmp_path):
    from engine_shim.settings import read_settings

    cluster = Cluster(charts.render("kind"), SECRETS)
    template = cluster.rendered.pods()[f"tandem-{pool}"]
    container = template["spec"]["containers"][0]
    assert container["command"] == ["tandem", "shim"]
    start = launch(cluster, Pod(f"tandem-{pool}-x", "10.0.0.2", template, tmp_path), container)
    settings = read_settings(container.get("args", []), start.env)
    assert (settings.role, settings.advertise_host, settings.instance_id) == (pool, "10.0.0.2", f"tandem-{pool}-x")
    assert (settings.store, settings.namespace) == ("redis://tandem-redis:6379/0", "llm-tandem")
    assert (settings.threads, settings.drain_for_s) == (1, 120)


def test_vllm_behind_a_shim_gets_its_arguments_and_nothing_that_is_the_shims(tmp_path):
    from engine_shim.settings import read_settings

    pool = {"engine": "vllm-shim", "image": "v:1", "model": "org/m", "args": ["--dtype", "float16"], "role": "decode"}
    values = {"deploymentKey": {"existingSecret": "tandem-keys"}, "pools": {"decode": pool}}
    cluster = Cluster(charts.render("", values=values), SECRETS)
    template = cluster.rendered.pods()["tandem-decode"]
    container = template["spec"]["containers"][0]
    start = launch(cluster, Pod("d-0", "10.0.0.4", template, tmp_path), container)
    settings = read_settings(container["args"], start.env)
    assert (settings.engine, settings.role, settings.engine_args) == ("vllm", "decode", "org/m --dtype float16")
    assert "lifecycle" not in container
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize("example", charts.EXAMPLES)
def test_every_file_that_a_command_names_is_mounted(example, tmp_path):
    cluster = Cluster(charts.render(example), SECRETS)
    for name, template in cluster.rendered.pods().items():
        for container in template["spec"]["containers"]:
            start = launch(cluster, Pod(name, "10.0.0.3", template, tmp_path / name), container, {})
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ())
            written = " ".join([*container.get("command", ()), *container.get("args", ()), *hook])
            named = [word for word in written.split() if word.startswith(MOUNTED)]
            assert all((tmp_path / name / path.lstrip("/")).exists() for path in named), name
            assert start.argv
