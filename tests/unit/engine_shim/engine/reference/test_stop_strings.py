from __future__ import annotations

import pytest

from engine_shim.engine.reference.stop_strings import StopMatch, StopStrings


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        ([], "abc", None),
        (["x"], "abc", None),
        (["b"], "abcb", StopMatch("b", 2)),
        (["cd", "b"], "abcd", StopMatch("b", 2)),
        (["b", "ab"], "ab", StopMatch("b", 2)),
        (["ab", "b"], "ab", StopMatch("ab", 2)),
        (["aab"], "aaab", StopMatch("aab", 4)),
        (["abab!"], "ababab!", StopMatch("abab!", 7)),
        (["é🎉"], "xé🎉y", StopMatch("é🎉", 3)),
    ],
)
def test_the_match_that_ends_first_counts(stops, text, expected):
    assert StopStrings(stops).walk(text, may_stop=True) == expected


def test_a_match_may_begin_in_an_earlier_piece():
    stops = StopStrings(["</s>"])
    assert stops.walk("a<", may_stop=True) is None
    assert stops.walk("/", may_stop=True) is None
    assert stops.walk("s>b", may_stop=True) == StopMatch("</s>", 2)


@pytest.mark.parametrize(
    ("stops", "text", "withheld"),
    [([], "abc", 0), (["cde"], "abc", 1), (["abcabd"], "abcabc", 3), (["xx", "bcd"], "abc", 2), (["abc"], "abc", 0)],
)
def test_what_may_become_a_stop_string_is_withheld(stops, text, withheld):
    watch = StopStrings(stops)
    watch.walk(text, may_stop=False)
    assert watch.withheld_chars == withheld


def test_a_match_that_may_not_stop_is_passed_over_but_its_overlap_counts():
    stops = StopStrings(["aa"])
    assert stops.walk("aa", may_stop=False) is None
    assert stops.withheld_chars == 1
    assert stops.walk("a", may_stop=True) == StopMatch("aa", 1)
