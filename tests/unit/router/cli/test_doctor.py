import json

import pytest

from router.cli import doctor
from router.contract.errors import BadSettings


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    """No set-up runs in this folder, and no store is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TANDEM_STORE", raising=False)
    monkeypatch.delenv("TANDEM_NAMESPACE", raising=False)


def test_nobody_at_home_is_status_1_and_says_what_to_do(capsys):
    assert doctor.main(["--url", "http://127.0.0.1:1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["warn", "store"], ["FAIL", "router"], ["FAIL", "fleet"]]
    assert "correct --url" in lines[1]


def test_the_namespace_comes_from_the_routers_environment(monkeypatch):
    assert doctor._parser().parse_args([]).namespace == "tandem"
    monkeypatch.setenv("TANDEM_NAMESPACE", "llm-tandem")
    assert doctor._parser().parse_args([]).namespace == "llm-tandem"


def test_json_says_the_same(capsys):
    assert doctor.main(["--url", "http://127.0.0.1:1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["well"] is False


@pytest.mark.parametrize(("text", "num_bytes"), [("4096", 4096), ("64K", 65536), ("8m", 8 << 20)])
def test_sizes(text, num_bytes):
    assert doctor._bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "K", "0", "-1", "1.5M", "8G"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(BadSettings, match="--sizes"):
        doctor.main([f"--sizes={text}"])
