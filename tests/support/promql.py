"""What a PromQL expression asks for: metrics, and labels that it expects on them. Syntax is Prometheus' business."""

from __future__ import annotations

import re
from collections.abc import Iterator

METRIC = re.compile(r"\b(tandem[\w:]*|up)\b(?:\s*\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([\w\s,]*)\)")
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
OF_TARGETS = frozenset({"job", "instance", "namespace", "pod"})
"""Labels that Prometheus adds to everything that it scrapes."""


def selectors(expr: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Each metric of an expression with the labels by which its series are chosen."""
    for found in METRIC.finditer(_outside_quotes(expr)):
        yield found[1], frozenset(MATCHER.findall(found[2] or ""))


def groupings(expr: str) -> frozenset[str]:
    """The labels by which an expression groups or joins."""
    names = ",".join(GROUPING.findall(_outside_quotes(expr)))
    return frozenset(name.strip() for name in names.split(",")) - {""}


def unknown(expr: str, known: dict[str, frozenset[str]]) -> list[str]:
    """Metrics and labels of an expression that are not among the `known` ones (labels by metric), in words."""
    found: list[str] = []
    offered = set(OF_TARGETS)
    for metric, labels in selectors(expr):
        if metric not in known:
            found.append(f"no metric {metric}")
            continue
        offered |= known[metric]
        found += [f"{metric} has no label {label}" for label in sorted(labels - known[metric] - OF_TARGETS)]
    return found + [f"nothing has the label {label}" for label in sorted(groupings(expr) - offered)]


def _outside_quotes(expr: str) -> str:
    return QUOTED.sub('""', expr)
