"""The compose file: our commands take what it says, and Prometheus and Grafana find what they are given."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from engine_shim.settings import read_settings
from tests.support.source_tree import ROOT

COMPOSE = ROOT / "deploy" / "compose"
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
KEY = "0123456789abcdef0123456789abcdef"


def environment(name):
    said = SERVICES[name]["environment"]
    return {one: KEY if text.startswith("${TANDEM_DEPLOYMENT_KEY") else text for one, text in said.items()}


def test_the_router_takes_its_environment():
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environment("router")}
    words = (sys.executable, "-m", "router.cli.main", *SERVICES["router"]["command"], "--check-config")
    done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)["settings"]
    assert (said["mode"], said["port"], said["total_s"]) == ("push", 8000, 60)
    assert said["grace_s"] + said["pre_stop_s"] < seconds(SERVICES["router"]["stop_grace_period"])


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_engines_take_theirs_and_are_called_by_their_names(name):
    settings = read_settings(SERVICES[name]["command"][1:], environment(name))
    assert (settings.role, settings.advertise_host, settings.instance_id) == (name, name, name)
    assert settings.store == environment("router")["TANDEM_STORE"]
    assert settings.drain_for_s < seconds(SERVICES[name]["stop_grace_period"])


def test_nothing_listens_beyond_the_machine():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_file_that_is_mounted_is_there():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            assert (COMPOSE / volume.split(":")[0]).exists(), volume


def test_prometheus_asks_those_that_are_started():
    config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    asked = {
        job["job_name"]: [target for static in job["static_configs"] for target in static["targets"]]
        for job in config["scrape_configs"]
    }
    assert asked == {"tandem-router": ["router:8000"], "tandem-shim": ["prefill:8000", "decode:8000"]}


@pytest.mark.needs("promtool")
def test_prometheus_takes_its_configuration():
    words = ("promtool", "check", "config", "--syntax-only", str(COMPOSE / "prometheus.yaml"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def seconds(text):
    assert text.endswith("s")
    return float(text[:-1])
