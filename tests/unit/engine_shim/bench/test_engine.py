from __future__ import annotations

import json

import pytest

from engine_shim.bench import engine as bench
from tests.support.tiny_models import write_tiny_llama

SHORT = ["--threads", "1", "--batch", "1,2", "--input-tokens", "9", "--output-tokens", "3", "--rounds", "2"]


@pytest.fixture
def model(tmp_path):
    write_tiny_llama(tmp_path)
    return str(tmp_path)


def test_both_contestants_stand_side_by_side(model, tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert bench.main(["--model", model, *SHORT, "--json", str(out)]) == 0
    table = capsys.readouterr().out
    assert "batch 2: 4 of 4 generated sequences are equal" in table
    rows = [line.split() for line in table.splitlines() if line.split()[1:2] in (["prefill"], ["decode"])]
    assert [row[:2] for row in rows] == [["1", "prefill"], ["1", "decode"], ["2", "prefill"], ["2", "decode"]]
    figures = json.loads(out.read_text())["tokens_per_s"]
    assert len(figures) == 8
    assert all(len(figure["all"]) == 2 and figure["median"] > 0 for figure in figures)
    medians = {(figure["contestant"], figure["batch"], figure["phase"]): figure["median"] for figure in figures}
    ratio = medians["reference", 1, "prefill"] / medians["transformers", 1, "prefill"]
    assert float(rows[0][-1]) == pytest.approx(ratio, abs=0.006)


def test_without_transformers_the_engine_runs_alone_and_says_so(model, monkeypatch, capsys):
    monkeypatch.setattr(bench, "has_transformers", lambda: False)
    assert bench.main(["--model", model, *SHORT, "--batch", "1"]) == 0
    table = capsys.readouterr().out
    assert "transformers is not installed" in table
    assert "generated sequences" not in table


@pytest.mark.parametrize("wrong", [["--batch", "0"], ["--batch", "a"], ["--output-tokens", "1"], ["--model", "absent"]])
def test_wrong_options_are_one_sentence_and_status_2(model, wrong, capsys):
    assert bench.main(["--model", model, *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
