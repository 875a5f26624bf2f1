"""`tandem simulate` from its command line."""

import json
from pathlib import Path

import pytest

from engine_shim.simulation.ablations import SAFEGUARDS
from engine_shim.simulation.main import main
from router.contract.errors import BadSettings


def test_good_seeds_end_with_status_0_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--jobs", "1"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split()[:2] == ["seeds", "5"]
    assert "seats_safe" in table


def test_a_safeguard_that_is_off_is_found_and_its_story_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ablate", "quarantine", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "seats_safe: " in out
    replay = next(line for line in out.splitlines() if line.startswith("replay: ")).split()
    assert replay[1:4] == ["tandem", "simulate", "--seed"]
    assert main(replay[3:]) == 1
    assert "frees seats" in capsys.readouterr().out


def test_a_safeguard_that_no_seed_needs_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ablate", "late_refusal", "--seeds", "1", "--jobs", "1"]) == 1
    assert "does NOT break" in capsys.readouterr().out


def test_one_seed_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1"]) == 0
    assert "asks r1" in capsys.readouterr().out


def test_the_list_names_every_safeguard(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(SAFEGUARDS)


def test_json_holds_counts_and_bad_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    assert main(["--seeds", "60", "--jobs", "1", "--ablate", "count_landings", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["bad"][0]["violations"][0]["invariant"] == "right_kv"
    assert sum(num for name, num in found["counts"].items() if name.startswith("outcome ")) == found["requests"]


def test_coverage_lists_the_rows_of_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seeds", "3", "--jobs", "1", "--coverage"])
    assert "JOIN MATCHED WriterDone" in capsys.readouterr().out


def test_several_processes_find_what_one_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for jobs in ("1", "2"):
        main(["--seeds", "120", "--jobs", jobs, "--json", "-"])
        counts.append(json.loads(capsys.readouterr().out)["counts"])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("words", [["--ablate", "nothing"], ["--seeds", "0"], ["--jobs", "0"]])
def test_impossible_wishes_are_refused(words: list[str]) -> None:
    with pytest.raises(BadSettings):
        main(words)
