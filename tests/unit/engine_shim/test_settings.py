import json
from pathlib import Path

import pytest

from engine_shim.settings import ShimSettings, read_settings
from router.contract.errors import BadSettings
from router.settings import Settings


def test_flags_beat_the_environment_and_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "shim.toml"
    file.write_text('port = 1\nrole = "prefill"\nblock-tokens = 8\nprefix_cache = false\n')
    environ = {"TANDEM_SHIM_PORT": "2", "TANDEM_SHIM_ROLE": "decode", "PATH": "/bin"}
    settings = read_settings(["--config", str(file), "--port", "3"], environ)
    assert (settings.port, settings.role, settings.block_tokens, settings.prefix_cache) == (3, "decode", 8, False)


def test_json_files_are_read_and_defaults_stay(tmp_path: Path) -> None:
    file = tmp_path / "shim.json"
    file.write_text(json.dumps({"kv_wait_for_s": 2.5}))
    settings = read_settings(["--config", str(file)], {})
    assert settings == ShimSettings(kv_wait_for_s=2.5)


@pytest.mark.parametrize(("word", "value"), [("1", True), ("True", True), ("on", True), ("no", False), ("OFF", False)])
def test_a_switch_takes_the_words_that_the_router_takes(word: str, value: bool) -> None:
    assert read_settings([], {"TANDEM_SHIM_PREFIX_CACHE": word}).prefix_cache is value


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"TANDEM_SHIM_PROT": "1"}, "Did you mean port?"),
        ({"TANDEM_SHIM_PORT": "x"}, "--port must be a whole number"),
        ({"TANDEM_SHIM_PORT": "70000"}, "0 to 65535"),
        ({"TANDEM_SHIM_ROLE": "cook"}, "one of prefill, decode, both"),
        ({"TANDEM_SHIM_PREFIX_CACHE": "maybe"}, "--prefix-cache must be true or false"),
        ({"TANDEM_SHIM_BLOCK_TOKENS": "0"}, "--block-tokens must be at least 1"),
        ({"TANDEM_SHIM_RECALL_LEAST_TOKENS": "-1"}, "--recall-least-tokens must be 0 or at least 1"),
        ({"TANDEM_SHIM_RECALL_WAIT_FOR_S": "0"}, "--recall-wait-for-s must be more than 0 seconds"),
        ({"TANDEM_SHIM_LEASE_FOR_S": "0"}, "--lease-for-s must be more than 0 seconds"),
        ({"TANDEM_SHIM_DEVICES": "cuda:1", "TANDEM_SHIM_DEVICE": "cuda"}, "--devices must be numbers of GPUs"),
        ({"TANDEM_SHIM_DEVICES": "1"}, "--devices is for the reference engine with --device cuda"),
        ({"TANDEM_SHIM_LEASE_FOR_S": "nan"}, "--lease-for-s must be a number of seconds"),
        ({"TANDEM_SHIM_DRAIN_FOR_S": "-1"}, "--drain-for-s must be a number of seconds"),
        ({"TANDEM_SHIM_KV_WAIT_FOR_S": "inf"}, "--kv-wait-for-s must be a number of seconds"),
        ({"TANDEM_SHIM_FLEET_LEASE_FOR_S": "0"}, "--fleet-lease-for-s must be more than 0 seconds"),
        ({"TANDEM_SHIM_KEEP_ALIVE_S": "0"}, "--keep-alive-s must be more than 0 seconds"),
    ],
)
def test_bad_settings_say_what_to_change(environ: dict[str, str], text: str) -> None:
    with pytest.raises(BadSettings) as caught:
        read_settings([], environ)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.toml", "port = = 1", "neither TOML nor JSON"),
        ("a.json", "[1]", "must hold a table"),
        ("a.toml", 'modle = "x"', "Did you mean model?"),
        (None, "", "cannot be read"),
    ],
)
def test_bad_files_say_what_to_change(tmp_path: Path, name: str | None, content: str, text: str) -> None:
    path = tmp_path / (name or "missing.toml")
    if name is not None:
        path.write_text(content)
    with pytest.raises(BadSettings) as caught:
        read_settings(["--config", str(path)], {})
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("host", "advertise_host"),
    [
        ("0.0.0.0", ""),
        ("0.0.0.0", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", ""),
        ("10.0.0.7", "0.0.0.0"),
        ("127.0.0.1", "::"),
    ],
)
def test_e5_an_address_that_nobody_can_call_is_refused_with_the_setting_to_change(host, advertise_host):
    with pytest.raises(BadSettings, match="--advertise-host"):
        ShimSettings(host=host, advertise_host=advertise_host, deployment_key="k" * 32)


@pytest.mark.parametrize(
    ("host", "advertise_host"),
    [
        ("127.0.0.1", ""),
        ("localhost", ""),
        ("127.0.0.1", "127.0.0.2"),
        ("0.0.0.0", "10.0.0.7"),
        ("::", "p0.svc"),
        ("10.0.0.7", ""),
    ],
)
def test_e5_an_address_that_others_can_call_is_taken(host, advertise_host):
    assert ShimSettings(host=host, advertise_host=advertise_host, deployment_key="k" * 32).host == host


def test_g9_idle_connections_outlive_those_of_the_router() -> None:
    assert ShimSettings().keep_alive_s >= Settings().engine_idle_s + 5
