"""ARCHITECTURE.md shows the tables as the code walks them."""

import pytest

from router.contract.diagram import join_diagram
from router.contract.rendezvous import JOIN, Arrival, JoinState
from tests.support.diagrams import ARCHITECTURE, DIAGRAMS, PLACE, redrawn

TEXT = ARCHITECTURE.read_text(encoding="utf-8")


def test_the_page_is_as_freshly_printed() -> None:
    assert redrawn(TEXT) == TEXT, "run `make diagrams`"


def test_the_page_shows_join_and_a_lifecycle() -> None:
    shown = {place["name"]: place["body"] for place in PLACE.finditer(TEXT)}
    assert shown["join"] == f"```mermaid\n{join_diagram()}```\n"
    assert "lifecycle-push" in shown
    assert shown.keys() <= DIAGRAMS.keys()


def test_a_table_that_has_changed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(JOIN, (JoinState.SEATED, Arrival.PREFILLED))
    assert redrawn(TEXT) != TEXT


def test_every_edge_that_does_something_is_drawn() -> None:
    drawn = join_diagram()
    for (before, arrival), (after, effects) in JOIN.items():
        label = f"{arrival} [{', '.join(effects)}]" if effects else arrival.value
        arrow = next((line for line in drawn.splitlines() if f" {before} --> {after}:" in line), "")
        assert (label in arrow) is (after is not before or bool(effects))
