"""What a dashboard consists of: rows of panels, each of which draws the answers to a few queries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a panel draws, as Grafana calls it."""

    LINES = "timeseries"
    NUMBER = "stat"
    BARS = "bargauge"


class Unit(StrEnum):
    """Units as Grafana calls them."""

    COUNT = "short"
    SECONDS = "s"
    SHARE = "percentunit"
    BYTES = "bytes"
    BYTES_PER_S = "Bps"
    REQUESTS_PER_S = "reqps"
    PER_S = "cps"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and the name of each line; `{{label}}` in it is the value of a label."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture."""

    title: str
    unit: Unit
    about: str
    """What it shows and what to make of it."""
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    stacked: bool = False
    columns: int = 8
    """Width; a row has 24."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def lines(title: str, unit: Unit, about: str, **queries: str) -> Panel:
    """A panel of lines, one for each named query; `_` in a name is a blank."""
    return Panel(title, unit, about, tuple(Query(expr, name.replace("_", " ")) for name, expr in queries.items()))


def split(title: str, unit: Unit, about: str, expr: str, legend: str, *, stacked: bool = False) -> Panel:
    """A panel with a line for each series of one query, stacked on each other where they add up to a whole."""
    return Panel(title, unit, about, (Query(expr, legend),), stacked=stacked)


def number(title: str, unit: Unit, about: str, expr: str) -> Panel:
    """A single number, a sixth of a row wide."""
    return Panel(title, unit, about, (Query(expr, ""),), kind=Kind.NUMBER, columns=4)
