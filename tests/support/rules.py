"""The alerts and recording rules of the chart, as tests look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.promql import groupings

FILES = Path(__file__).parents[2] / "helm" / "tandem" / "files"
RULE_FILES = (FILES / "slo.yaml", FILES / "rules.yaml")


def rules() -> list[dict[str, Any]]:
    """All of them, in their order."""
    groups = [group for path in RULE_FILES for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Those that wake somebody."""
    return [rule for rule in rules() if "alert" in rule]


def expressions() -> list[tuple[str, str]]:
    """(name, expression) of each rule."""
    return [(rule.get("alert") or rule["record"], str(rule["expr"])) for rule in rules()]


def recorded() -> dict[str, frozenset[str]]:
    """What recording rules make, with the labels that they group by."""
    return {rule["record"]: groupings(str(rule["expr"])) for rule in rules() if "record" in rule}
