"""Dashboards are as their panels say, and ask for nothing that the tables of metrics do not promise."""

import pytest

from deploy.dashboards.__main__ import FILES, FOLDER, text_of
from tests.support.dashboards import filled_in, panels, queries
from tests.support.metric_tables import promised
from tests.support.promql import unknown
from tests.support.rules import expressions, recorded


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_as_freshly_written(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == text_of(name), "run `make dashboards`"


def test_whatever_is_asked_for_is_promised() -> None:
    known = promised() | recorded()
    assert {name: wrong for name, expr in (*queries(), *expressions()) if (wrong := unknown(expr, known))} == {}


def test_a_query_for_something_else_is_noticed() -> None:
    known = {"tandem_a": frozenset({"x"}), "tandem_b": frozenset({"y"})}
    assert unknown('sum by (x) (tandem_a{x="1", job="j"})', known) == []
    assert unknown('sum by (z) (tandem_a{y=~"tandem_c"}) / on(y) tandem_b + tandem_d', known) == [
        "tandem_a has no label y",
        "no metric tandem_d",
        "nothing has the label z",
    ]


def test_every_variable_of_a_query_is_one_of_the_page() -> None:
    assert [name for name, expr in queries() if "$" in filled_in(expr)] == []


def test_panels_have_titles_of_their_own_and_say_what_they_show() -> None:
    titles = [one["title"] for one in panels()]
    assert len(set(titles)) == len(titles)
    assert all(one["description"].endswith(".") for one in panels())


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for one in FILES["tandem.json"]["panels"]:
        place = one["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, one["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
