import json

import pytest

from router import __main__ as module
from router.contract.errors import AddressTaken, BadSettings, Impossible
from router.settings import Settings


@pytest.fixture
def served(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "_serve", lambda settings, *_: seen.append(settings))
    monkeypatch.setattr(module.os, "environ", {})
    return seen


def test_flags_become_settings(served):
    assert (
        module.main(["--port", "9", "--prefill", "http://a:1", "--prefill", "http://b:1", "--decode", "http://d:1"])
        == 0
    )
    assert served == [Settings(port=9, prefill=("http://a:1", "http://b:1"), decode=("http://d:1",))]


def test_what_the_operator_must_change_is_a_sentence_and_status_2(served, capsys, monkeypatch):
    assert module.main([]) == 2
    assert capsys.readouterr().err.startswith("tandem router: Give --store")

    def taken(*_):
        raise AddressTaken("Cannot listen.")

    monkeypatch.setattr(module, "_serve", taken)
    assert module.main(["--decode", "http://d:1"]) == 2
    assert capsys.readouterr().err == "tandem router: Cannot listen.\n"


def test_an_unknown_flag_is_argparses_own_refusal(served):
    with pytest.raises(SystemExit) as ended:
        module.main(["--nothing"])
    assert ended.value.code == 2


def test_a_secret_is_no_flag(served, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        module.main(["--decode", "http://d:1", "--deployment-key", "0123456789abcdef"])
    monkeypatch.setattr(module.os, "environ", {"TANDEM_DEPLOYMENT_KEY": "0123456789abcdef"})
    assert module.main(["--decode", "http://d:1"]) == 0
    assert served == [Settings(decode=("http://d:1",), deployment_key="0123456789abcdef")]
    with pytest.raises(SystemExit):
        module.main(["--help"])
    assert "TANDEM_DEPLOYMENT_KEY" in capsys.readouterr().out


def test_check_config_prints_what_is_in_force_and_serves_not(served, capsys, tmp_path):
    path = tmp_path / "fleet.json"
    path.write_text('{"engines": [{"url": "http://a:1", "role": "both"}]}')
    module.os.environ["TANDEM_DEPLOYMENT_KEY"] = "0123456789abcdef"
    assert module.main(["--check-config", "--fleet-file", str(path), "--port", "9"]) == 0
    out = capsys.readouterr().out
    shown = json.loads(out)
    assert (shown["settings"]["port"], shown["engines"][0]["url"]) == (9, "http://a:1")
    assert "0123456789abcdef" not in out and not served


@pytest.mark.parametrize("text", ["{", '{"engines": [{"url": "http://a:1", "rol": "both"}]}'])
def test_check_config_ends_with_2_for_a_bad_fleet_file(served, capsys, tmp_path, text):
    path = tmp_path / "fleet.json"
    path.write_text(text)
    assert module.main(["--check-config", "--fleet-file", str(path)]) == 2
    assert "fleet file" in capsys.readouterr().err and not served


def test_check_config_ends_with_2_for_a_store_that_cannot_be_one(served, capsys):
    assert module.main(["--check-config", "--store", "http://x"]) == 2
    assert "store URL" in capsys.readouterr().err and not served


@pytest.mark.parametrize(("flags", "key"), [(["--print-schema"], "port"), (["--print-schema", "fleet"], "engines")])
def test_schemas_are_printed(served, capsys, flags, key):
    assert module.main(flags) == 0
    assert key in json.loads(capsys.readouterr().out)["properties"]
    assert not served


@pytest.mark.parametrize(("error", "status"), [(BadSettings("No."), 2), (Impossible("No."), 1)])
def test_a_router_that_has_failed_ends_with_a_sentence_and_another_status(capsys, error, status):
    def serve():
        raise error

    assert module._status(serve) == status
    assert capsys.readouterr().err == "tandem router: No.\n"
