import json

import pytest

from router.contract.errors import BadSettings, MissingDependency
from router.contract.instance import Mode
from router.settings import Settings
from router.sources import load, read_table

BASE = {"decode": ("http://d:1",)}


def test_flags_beat_environment_beats_file_beats_default(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"port": 1, "host": "file", "total_s": 5}))
    env = {"TANDEM_PORT": "2", "TANDEM_HOST": "env", "HOME": "x"}
    settings = load({"port": "3", **BASE}, env, str(path))
    assert (settings.port, settings.host, settings.total_s, settings.attempts) == (3, "env", 5.0, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "mode: pull\nprefill: [http://a:1/, 'http://b:1']\naccess-log: false\n"),
        ("s.yml", "mode: pull\nprefill: http://a:1,http://b:1\naccess_log: no\n"),
        ("s.toml", 'mode = "pull"\nprefill = ["http://a:1", "http://b:1"]\naccess_log = false\n'),
        ("s.json", '{"mode":"pull","prefill":["http://a:1","http://b:1"],"access-log":false}'),
    ],
)
def test_files_of_each_kind_are_read(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    settings = load(BASE, {}, str(path))
    assert (settings.mode, settings.prefill, settings.access_log) == (
        Mode.PULL,
        ("http://a:1", "http://b:1"),
        False,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "a: ["),
        ("s.toml", "x"),
        ("s.json", "{"),
        ("s.json", "[1]"),
        ("s.yaml", "- 1"),
        ("s.json", "[" * 100_000),
        ("s.json", "\udcff"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadSettings, match=r"settings file .*" + name):
        load(BASE, {}, str(path))


@pytest.mark.parametrize(("text", "name"), [("on: true", "True"), ("5: x", "5"), ("null: 1", "None")])
def test_keys_of_yaml_that_are_no_text_are_named(tmp_path, text, name):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(BadSettings, match=f"There is no setting {name} "):
        load(BASE, {}, str(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "port: 1\nhost: a\nport: 2\n"),
        ("s.yaml", "engines:\n- url: http://a:1\n  labels: {port: a, port: b}\n"),
        ("s.json", '{"port": 1, "port": 2}'),
        ("s.toml", "port = 1\nport = 2\n"),
        ("s.yaml", "prefill_s: 1\nprefill-s: 2\n"),
    ],
)
def test_a_member_that_stands_there_twice_is_refused(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadSettings, match=r"twice|overwrite"):
        load(BASE, {}, str(path))


def test_yaml_may_use_what_it_has_named(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: [*a, *a]\nd: &d [*d]\n")
    table = read_table(path)
    assert (table["b"], table["c"]) == ({"x": 3, "y": 2}, [{"x": 1, "y": 2}] * 2)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadSettings, match="cannot be read"):
        load(BASE, {}, str(tmp_path / "none.json"))


def test_yaml_without_its_package_says_so(tmp_path, monkeypatch):
    path = tmp_path / "s.yaml"
    path.write_text("port: 1")
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(MissingDependency, match="PyYAML"):
        load(BASE, {}, str(path))


def test_unknown_names_are_refused_with_a_guess(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"next_tokn_s": 1}')
    with pytest.raises(BadSettings, match=r"'next_tokn_s'.*did you mean next_token_s\?"):
        load(BASE, {}, str(path))
    with pytest.raises(BadSettings, match="'zzzzzz'"):
        load(BASE, {"TANDEM_ZZZZZZ": "1"}, None)


def test_variables_of_other_commands_and_of_kubernetes_are_none_of_ours():
    env = {
        "TANDEM_TEST_REDIS_URL": "x",
        "TANDEM_SHIM_ROLE": "prefill",
        "TANDEM_PORT": "tcp://10.0.0.1:8000",
        "TANDEM_SERVICE_HOST": "10.0.0.1",
        "TANDEM_ROUTER_SERVICE_PORT_HTTP": "8000",
        "TANDEM_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert load(BASE, env, None) == Settings(decode=("http://d:1",))


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("port", "9", 9),
        ("total_s", "1.5", 1.5),
        ("total_s", 2, 2.0),
        ("access_log", "off", False),
        ("access_log", "YES", True),
        ("access_log", True, True),
        ("mode", "local", Mode.LOCAL),
        ("mode", "auto", "auto"),
        ("model_aliases", "a=b,c=d", ("a=b", "c=d")),
        ("prefill", " http://a:1/ , ,http://b:1", ("http://a:1", "http://b:1")),
        ("store", "redis://x", "redis://x"),
    ],
)
def test_values_become_their_type(name, value, read):
    assert getattr(load(BASE | {name: value}, {}, None), name) == read


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("port", "x", "port cannot be 'x'; give a whole number."),
        ("total_s", True, "total_s cannot be True; give a number."),
        ("access_log", "maybe", "access_log cannot be 'maybe'; give true or false."),
        ("prefill", 1, "prefill cannot be 1; give a list of texts."),
        ("store", 1, "store cannot be 1; give a text."),
        ("engine_key", 12345, "engine_key cannot be what it is set to; give a text."),
    ],
)
def test_a_value_of_another_type_is_told_what_to_give(name, value, message):
    with pytest.raises(BadSettings) as refused:
        load(BASE | {name: value}, {}, None)
    assert refused.value.message == message
