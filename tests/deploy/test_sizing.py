"""The sizing table: what the cost model's lines say, by hand, and as README has it."""

import json
import re

import pytest

from deploy import sizing
from router.contract.errors import BadSettings
from tests.support.source_tree import ROOT

ENGINES = sizing.Engines(0.0, 0.001, 0.01, 0.001, 10_000)


def test_prefills_are_busy_for_seven_tenths_of_their_time():
    assert sizing.prefills(sizing.Load(6.9, 100, 1), ENGINES) == 1  # of 0.1 s each: 0.69 of one
    assert sizing.prefills(sizing.Load(7.1, 100, 1), ENGINES) == 2
    assert sizing.prefills(sizing.Load(13.9, 100, 1, cached_share=0.5), ENGINES) == 1


def test_decodes_are_as_many_as_the_time_per_token_needs():
    # TPOT of 20 ms allows 10 sequences; each engine then makes 10 / 20 ms = 500 tokens/s, or 5 answers of 100 tokens.
    assert sizing.decodes(sizing.Load(5, 10, 100, tpot_s=0.02), ENGINES) == 1
    assert sizing.decodes(sizing.Load(5.1, 10, 100, tpot_s=0.02), ENGINES) == 2


def test_or_as_the_cache_has_room_for():
    # Room for 2 sequences: a step of 12 ms makes 166 tokens/s.
    assert sizing.decodes(sizing.Load(1.6, 4900, 100, tpot_s=1.0), ENGINES) == 1
    assert sizing.decodes(sizing.Load(1.7, 4900, 100, tpot_s=1.0), ENGINES) == 2


def test_what_cannot_be_had_is_none():
    assert sizing.decodes(sizing.Load(1, 10, 100, tpot_s=0.01), ENGINES) is None
    assert sizing.decodes(sizing.Load(1, 10_000, 100), ENGINES) is None


def test_readme_has_the_table():
    readme = (ROOT / "deploy" / "README.md").read_text()
    written = re.search(r"<!-- python -m deploy.sizing -->\n(.*?)\n<!-- end -->", readme, re.DOTALL)
    assert written is not None
    assert written[1] == sizing.table(sizing.Engines(), 0.03, 0.0)


def bench(**tokens_per_s):
    rows = [
        {"contestant": "reference", "phase": name.split("_")[0], "batch": int(name.split("_")[1]), "median": value}
        for name, value in tokens_per_s.items()
    ]
    return json.dumps(
        {"tokens_per_s": [*rows, {"contestant": "transformers", "phase": "decode", "batch": 4, "median": 1}]}
    )


def test_measured_engines_are_lines_through_what_was_measured():
    # A step takes 20 ms with 1 sequence and 34 ms with 8: 18 ms, and 2 ms for each.
    engines = sizing.measured(bench(prefill_1=2000, prefill_8=2500, decode_1=50, decode_8=8 / 0.034))
    assert engines.prefill_token_s == pytest.approx(1 / 2000)
    assert engines.prefill_base_s == 0
    assert engines.step_base_s == pytest.approx(0.018)
    assert engines.step_sequence_s == pytest.approx(0.002)


@pytest.mark.parametrize("text", ["", "[]", "{}", bench(prefill_1=1, decode_1=1), bench(decode_1=1, decode_8=0)])
def test_a_file_that_says_nothing_is_refused(text):
    with pytest.raises(BadSettings, match="measure"):
        sizing.measured(text)


@pytest.mark.parametrize(
    "flag", ["--prefill-tokens-per-s=0", "--step-sequence-s=0", "--tpot-s=nan", "--cached-share=2"]
)
def test_a_number_that_no_engine_or_load_has_is_refused(flag, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sizing", flag])
    with pytest.raises(SystemExit) as ended:
        sizing.main()
    assert ended.value.code == 2
    assert flag.partition("=")[0] in capsys.readouterr().err
