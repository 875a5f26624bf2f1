"""The sizing table: what the cost model's lines say, by hand, and as README has it."""

import re

from deploy import sizing
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
