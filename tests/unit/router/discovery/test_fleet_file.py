import json
import os

import pytest

from router.contract.errors import BadSettings
from router.contract.instance import Mode, Role
from router.discovery.entry import Contract, Entry, Identity
from router.discovery.fleet_file import FleetFile, read_fleet_file

GOOD = """
engines:
  - url: http://10.0.0.7:8000/
    role: prefill
    contract: vllm
    identity: {engine_id: p0, host: 10.0.0.7, port: 5600, mode: push, tp_size: 2}
  - {url: "https://[fd00::5]:9001", name: d0, role: decode, zone: a, labels: {gpu: h200, n: 1}, aliases: [x]}
"""


def written(tmp_path, text, name="fleet.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_lists_servers(tmp_path):
    one, two = read_fleet_file(written(tmp_path, GOOD))
    identity = Identity("p0", "10.0.0.7", 5600, tp_size=2, mode=Mode.PUSH)
    assert one == Entry("http://10.0.0.7:8000", Role.PREFILL, Contract.VLLM, identity=(identity,))
    assert (two.url, two.name, two.zone) == ("https://[fd00::5]:9001", "d0", "a")
    assert (two.labels, two.aliases) == ((("gpu", "h200"), ("n", "1")), ("x",))


def test_json_is_read_as_well_and_nobody_may_be_listed(tmp_path):
    assert read_fleet_file(written(tmp_path, '{"engines": []}', "f.json")) == ()


def entry(**fields):
    return json.dumps({"engines": [{"url": "http://a:1"} | fields]})


PREFILL = {"role": "prefill", "contract": "vllm"}
WHO = {"engine_id": "e", "host": "h", "port": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not valid"),
        ("[]", "must hold one table"),
        ("{", "is not valid"),
        ('{"engine": []}', "did you mean engines?"),
        ('{"engines": {}}', "list `engines`"),
        ('{"engines": ["http://a"]}', r"engines\[0\] must be a table"),
        ('{"engines": [{"url": "http://a"}, {"url": "http://a/"}]}', "'http://a' is there more than once"),
        ('{"engines": [{"url": "http://a", "name": "n"}, {"url": "http://b", "name": "n"}]}', "name 'n'"),
        (entry(rol="prefill"), r"no engines\[0\].rol .*did you mean role\?"),
        (entry(zzz=1), "known are url, role"),
        (entry(url="a:1"), "must look like http://host:port"),
        (entry(url="http://u:p@a:1"), "must look like"),
        (entry(url="http://a:1/v1"), "must look like"),
        (entry(url="http://[::1:8000"), "must look like"),
        (entry(url="http://a:99999"), "must look like"),
        (entry(role="Prefill"), r"engines\[0\]: Invalid enum value 'Prefill'"),
        (entry(draining="yes"), "Expected `bool`"),
        (entry(name="ä"), "printable ASCII"),
        (entry(contract="vllm"), "role is needed"),
        (entry(contract="tandem", identity=WHO), "the shim's to tell"),
        (entry(**PREFILL, identity={"engine_id": "e"}), "needs engine_id, host and port"),
        (entry(**PREFILL, identity=WHO | {"engin_id": "e"}), "did you mean engine_id?"),
        (entry(**PREFILL, identity=WHO | {"port": "5600"}), "Expected `int`"),
        (entry(**PREFILL, identity=WHO | {"tp_size": 0}), "a size that cannot be"),
        (entry(**PREFILL, identity=[WHO, WHO]), "dp_rank '0' is there more than once"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, says):
    with pytest.raises(BadSettings, match=says):
        read_fleet_file(written(tmp_path, text, "fleet.json"))


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path, caplog):
    path = written(tmp_path, entry(), "fleet.json")
    listing = FleetFile(path)
    assert [one.url for one in listing.entries()] == ["http://a:1"]

    written(tmp_path, '{"engines": [{"url": "http://b:12"}]}', "fleet.json")
    assert [one.url for one in listing.entries()] == ["http://b:12"]

    written(tmp_path, "{", "fleet.json")
    assert [one.url for one in listing.entries()] == ["http://b:12"]
    assert listing.bad and "the fleet stays as it was" in caplog.text and caplog.records[-1].levelname == "ERROR"

    path.unlink()
    assert [one.url for one in listing.entries()] == ["http://b:12"]
    assert listing.bad

    written(tmp_path, entry(url="http://c:1"), "new.json")
    os.replace(tmp_path / "new.json", path)
    assert [one.url for one in listing.entries()] == ["http://c:1"]
    assert not listing.bad


def test_a_bad_file_at_the_start_is_an_error(tmp_path):
    with pytest.raises(BadSettings):
        FleetFile(tmp_path / "none.yaml")
