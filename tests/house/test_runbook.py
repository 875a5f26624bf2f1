"""The runbook has a section for each alert, and names nothing that does not exist."""

import re

import pytest

from tests.support.dashboards import panels
from tests.support.metric_tables import promised
from tests.support.promql import selectors
from tests.support.rules import alerts, recorded
from tests.support.source_tree import ROOT

RUNBOOK = ROOT / "deploy" / "runbook.md"
TEXT = RUNBOOK.read_text("utf-8")
SECTION = re.compile(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
SECTIONS = dict(SECTION.findall(TEXT))
NAMES = [rule["alert"] for rule in alerts()]


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    assert list(SECTIONS) == sorted(SECTIONS, key=NAMES.index)
    assert set(SECTIONS) == set(NAMES)


@pytest.mark.parametrize("rule", alerts(), ids=NAMES)
def test_an_alert_says_where_it_is_explained_and_how_bad_it_is(rule: dict) -> None:
    assert rule["annotations"]["runbook"] == f"{RUNBOOK.relative_to(ROOT)}#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("page", "warn")


@pytest.mark.parametrize("name", NAMES)
def test_a_section_says_what_it_means_where_to_look_and_what_to_do(name: str) -> None:
    assert re.findall(r"^\*\*(\w+)\.\*\*", SECTIONS[name], re.MULTILINE) == ["Means", "Look", "Do"]


def test_every_metric_of_the_runbook_exists() -> None:
    known = promised() | recorded()
    named = {metric for code in CODE.findall(TEXT) if re.match(r"tandem[_:]", code) for metric, _ in selectors(code)}
    assert named and named <= known.keys()


def test_every_panel_and_alert_that_the_runbook_names_exists() -> None:
    titles = [one["title"] for one in panels()] + ["Push beside pull", "Tandem"]
    italic = re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", TEXT)
    assert italic and [name for name in italic if not any(title.startswith(name) for title in titles)] == []
    assert set(re.findall(r"\bTandem[A-Z]\w+", TEXT)) <= set(NAMES)
