"""deploy/vllm: what a user pastes is taken by the router, and says the same to both engines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.contract.instance import Role
from router.discovery.entry import Contract
from router.discovery.fleet_file import read_fleet_file
from router.settings import help_texts

FOLDER = Path(__file__).parents[2] / "deploy" / "vllm"


class _Loader(yaml.SafeLoader):
    """With compose's own tags."""


_Loader.add_constructor("!reset", lambda loader, node: None)


def services(name: str) -> dict[str, Any]:
    return yaml.load((FOLDER / name).read_text(), _Loader)["services"]


def flags(words: list[str]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))


def test_the_fleet_file_is_read() -> None:
    entries = read_fleet_file(FOLDER / "fleet.yaml")
    assert [entry.role for entry in entries] == [Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE]
    assert all(entry.contract is Contract.VLLM for entry in entries)


@pytest.mark.parametrize(("name", "backend"), [("compose.yaml", "UCX"), ("compose.efa.yaml", "LIBFABRIC")])
def test_both_engines_are_told_the_same(name: str, backend: str) -> None:
    told = {role: flags(services(name)[role]["command"]) for role in ("prefill", "decode")}
    configs = {role: json.loads(one.pop("kv-transfer-config")) for role, one in told.items()}
    assert {config["kv_connector"] for config in configs.values()} == {"NixlPushConnector"}
    assert (configs["prefill"].pop("kv_role"), configs["decode"].pop("kv_role")) == ("kv_producer", "kv_consumer")
    assert configs["prefill"] == configs["decode"]
    assert configs["prefill"]["kv_connector_extra_config"]["backends"] == [backend]
    assert "engine_id" not in configs["prefill"], "another one at each start"
    assert told["prefill"].pop("port") != told["decode"].pop("port")
    assert told["prefill"] == told["decode"]


def test_the_router_of_the_compose_file_takes_its_flags() -> None:
    made = services("compose.yaml")
    router = flags(made["router"]["command"])
    assert {name.replace("-", "_") for name in router} <= help_texts().keys()
    lease_s = json.loads(flags(made["prefill"]["command"])["kv-transfer-config"])["kv_connector_extra_config"]
    assert float(router["first-token-s"]) < lease_s["kv_lease_duration"]
    for role in ("prefill", "decode"):
        assert router[role].endswith(":" + flags(made[role]["command"])["port"])
    ports = {made[role]["environment"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] for role in ("prefill", "decode")}
    assert len(ports) == 2


def test_the_script_is_one() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "pair.sh")], check=True)
