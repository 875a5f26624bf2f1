from dataclasses import fields

import pytest

from router.contract.errors import BadSettings
from router.settings import Settings, check, help_texts
from router.sources import load

BASE = {"decode": ("http://d:1",)}


def test_every_setting_is_described():
    assert set(help_texts()) == {field.name for field in fields(Settings)}
    assert help_texts()["next_token_s"] == "Seconds between two tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "x"),
        ("port", 1.5),
        ("port", True),
        ("port", 70000),
        ("port", -1),
        ("total_s", "soon"),
        ("total_s", 0),
        ("total_s", None),
        ("attempts", 0),
        ("max_requests", 0),
        ("fleet_poll_s", 0),
        ("next_token_s", -1),
        ("total_s", float("nan")),
        ("total_s", "inf"),
        ("next_token_s", "nan"),
        ("breaker_share", "nan"),
        ("total_s", 10**400),
        ("engine_hosts", "10.0.0.1/8"),
        ("access_log", "maybe"),
        ("access_log", 1),
        ("mode", "sideways"),
        ("mode", 1),
        ("model_aliases", "a"),
        ("decode_policy", "fastest"),
        ("prefill", 1),
        ("prefill", [1]),
        ("store", 1),
        ("data_path", "tunnel"),
        ("prefill_policy", "best"),
        ("decode_policy", "best"),
        ("prefill_cancel", "sometimes"),
        ("workers", 257),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(BadSettings, match=name):
        load(BASE | {name: value}, {}, None)


def test_somebody_must_be_there_to_serve():
    with pytest.raises(BadSettings, match="--store"):
        check(Settings())
    assert check(Settings(store="redis://x")).store


def test_the_deployment_key_is_never_shown():
    key = "0123456789abcdef-secret"
    settings = load(BASE, {"TANDEM_DEPLOYMENT_KEY": key}, None)
    assert settings.deployment_key == key
    assert key not in repr(settings)
    with pytest.raises(BadSettings) as refused:
        load(BASE | {"deployment_key": 123456}, {}, None)
    assert "123456" not in refused.value.message
    with pytest.raises(BadSettings, match="at least 16 characters") as refused:
        load(BASE, {"TANDEM_DEPLOYMENT_KEY": "short"}, None)
    assert "'short'" not in refused.value.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trace_share": 1.5}, "trace_share"),
        ({"otlp": "collector:4318"}, "otlp"),
        ({"breaker_share": 1.1}, "breaker_share"),
        ({"metrics_port": 65536}, "metrics_port"),
        ({"metrics_port": 8000}, "metrics_port"),
        ({"decode_lead_s": 0.1, "mode": "pull"}, "decode_lead_s needs mode push or auto"),
        ({"decode_lead_s": 0.1, "mode": "local"}, "decode_lead_s needs mode push or auto"),
    ],
)
def test_ports_shares_and_addresses_are_what_they_can_be(changes, said):
    with pytest.raises(BadSettings, match=said):
        check(Settings(store="redis://x", **changes))
