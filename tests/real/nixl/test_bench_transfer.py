"""`tandem bench transfer` between two real agents, small."""

import json
from pathlib import Path

import pytest

from engine_shim.bench.transfer import main
from router.contract.errors import BadSettings


def test_every_case_is_measured_beside_its_ceilings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    small = [
        "--devices",
        "cpu,cpu",
        "--blocks",
        "8",
        "--block-kib",
        "16",
        "--runs",
        "all,1",
        "--rounds",
        "2",
        "--ring-mib",
        "1",
    ]
    assert main([*small, "--layouts", "block:block,layer:block/8", "--json", str(out)]) == 0
    cases = json.loads(out.read_text())["cases"]
    assert [case["name"] for case in cases[:2]] == ["plain copy", "one WRITE"]
    assert {case["num_bytes"] for case in cases} == {8 * 16 * 1024}
    assert [(case["name"], case["run_blocks"]) for case in cases[2:8]] == [
        (name, runs) for runs in (None, 1) for name in ("WRITE direct", "WRITE staged", "READ direct")
    ]
    assert all(len(case["landed_s"]["all"]) == 2 and case["gb_per_s"] > 0 for case in cases)
    assert "one WRITE" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--block-kib", "7"],
        ["--blocks", "0"],
        ["--ops", "send"],
        ["--rounds", "0"],
        ["--devices", "tpu"],
        ["--paths", "air"],
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(wrong: list[str]) -> None:
    with pytest.raises(BadSettings):
        main(wrong)
