"""The command that starts vLLM, and arguments that would keep the shim out."""

import json

import pytest

from engine_shim.engine.vllm.server import Wiring, command_of, read_engine_args
from engine_shim.settings import read_settings
from router.contract.errors import BadSettings
from router.contract.ids import EngineId
from router.contract.instance import KVIdentity, Mode, Role

WIRING = Wiring("/tmp/x", "the-secret", KVIdentity(EngineId("p@1"), "10.0.0.1", 9000, None, "", (Mode.PUSH,)))


@pytest.mark.parametrize(
    ("role", "kv_role"),
    [(Role.PREFILL, "kv_producer"), (Role.DECODE, "kv_consumer"), (Role.BOTH, "kv_both")],
    ids=lambda value: str(value),
)
def test_vllm_is_started_with_our_connector_on_a_socket_file(role: Role, kv_role: str) -> None:
    command = command_of(("MODEL", "--dtype", "float16"), WIRING, role)
    config = json.loads(command[command.index("--kv-transfer-config") + 1])
    assert command[command.index("serve") + 1 :][:3] == ("MODEL", "--dtype", "float16")
    assert command[command.index("--uds") + 1] == "/tmp/x/http"
    assert (config["kv_role"], config["engine_id"], config["kv_load_failure_policy"]) == (kv_role, "p@1", "fail")
    assert config["kv_connector_extra_config"]["tandem_socket"] == "/tmp/x/link"


def test_the_secret_is_no_argument_since_vllm_logs_those() -> None:
    assert "the-secret" not in " ".join(command_of(("MODEL",), WIRING, Role.BOTH))


@pytest.mark.parametrize(
    "text",
    [
        "M --port 8000",
        "M --host=0.0.0.0",
        "M --kv-transfer-config {}",
        "M --kv-transfer-config.kv_role x",
        "M --kv_transfer_config={}",
        "M --uds /x",
        "M --api-key k",
        "M 'unclosed",
    ],
)
def test_arguments_that_are_the_shims_are_refused(text: str) -> None:
    with pytest.raises(BadSettings, match="--engine-args"):
        read_engine_args(text)


def test_what_follows_the_dashes_are_vllms_arguments() -> None:
    settings = read_settings(["--engine", "vllm", "--role", "decode", "--", "my model", "--dtype", "float16"], {})
    assert (settings.role, read_engine_args(settings.engine_args)) == ("decode", ("my model", "--dtype", "float16"))


@pytest.mark.parametrize(
    "argv",
    [
        ["--engine", "vllm"],
        ["--engine", "vllm", "--fabric", "none", "--", "M"],
        ["--engine", "vllm", "--staging-bytes", "2000000", "--", "M"],
    ],
    ids=" ".join,
)
def test_settings_that_do_not_go_with_vllm_are_refused(argv: list[str]) -> None:
    with pytest.raises(BadSettings, match="--engine vllm needs"):
        read_settings(argv, {})
