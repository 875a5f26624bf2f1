"""`tandem bench router` with seconds cut short: real processes, every column filled."""

import json
import sys
from pathlib import Path

import pytest

from router.bench.router import main
from router.bench.router_report import Figure

pytestmark = pytest.mark.needs("redis")

SHORT = ("--paths", "hook", "--connections", "2", "--streams", "0", "--seconds", "1.0", "--rounds", "1")


def figures(path: Path) -> dict[tuple[str, str], Figure]:
    return {(one["target"], one["load"]): Figure(**one) for one in json.loads(path.read_text())["figures"]}


def test_it_measures_the_router_beside_the_engines_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, "--json", str(tmp_path / "out.json")]) == 0
    found = figures(tmp_path / "out.json")
    assert set(found) == {(target, "c2") for target in ("direct", "hook")}
    assert all(figure.requests_per_s > 0 and figure.failures == 0 for figure in found.values())
    assert found["hook", "c2"].cpu_us > 0 and found["hook", "c2"].rss_mib > 10
    assert found["hook", "c2"].p50_us > found["direct", "c2"].p50_us
    (booked,) = json.loads((tmp_path / "out.json").read_text())["booked"]
    assert booked["target"] == "hook" and booked["written"] > 0 and booked["dropped"] == 0
    assert "hook, c2" in capsys.readouterr().out


def test_ramp_soak_and_workers_have_their_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--ramp", "100", "--soak-s", "2", "--workers", "2", "--tokens-per-s", "10")
    assert main([*SHORT, *more, "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert {one["target"] for one in found["held"]} == {one["target"] for one in found["figures"]}
    assert len({one["target"] for one in found["figures"]}) == 3
    (soaked,) = found["soaked"]
    assert (soaked["target"], soaked["failures"], len(soaked["rss_mib"])) == ("hook", 0, 60)
    assert soaked["requests"] > 0
    assert "MiB/min" in capsys.readouterr().out


def test_a_peer_is_measured_in_the_same_run(tmp_path: Path) -> None:
    """Any program that takes two engines and a port will do: here, Tandem itself with a fixed fleet."""
    command = f"{sys.executable} -m router --prefill {{prefill}} --decode {{decode}} --port {{port}}"
    assert main([*SHORT, "--peer", f"other={command}", "--json", str(tmp_path / "out.json")]) == 0
    other = figures(tmp_path / "out.json")["other", "c2"]
    assert other.requests_per_s > 0 and other.cpu_us > 0 and other.failures == 0


def test_a_peer_that_is_not_installed_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--peer", "other=/no/such/router {prefill} {decode} {port}"]) == 2
    assert "/no/such/router is not there" in capsys.readouterr().err


def test_a_peer_needs_the_places_for_its_engines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peer", "other=router --port {port}"])
    assert "{prefill}, {decode} and {port}" in capsys.readouterr().err
