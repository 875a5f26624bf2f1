"""Merge: the metrics of several processes as those of one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from prometheus_client.core import Metric

LARGEST = frozenset(
    {
        "tandem_instances",
        "tandem_fleet_lists_bad",
        "tandem_store_degraded",
        "tandem_instance_health",
        "tandem_instance_shut",
    }
)
"""Gauges that every worker sees on its own: the largest stands for all. Others count what a worker has, and add up."""


class Family(msgspec.Struct):
    """A metric family as it travels: samples are (name, labels, value)."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


@dataclass(slots=True)
class _Merged:
    metric: Metric
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]


def take(metrics: Iterable[Metric]) -> list[Family]:
    """The families of a collection."""
    return [
        Family(one.name, one.documentation, one.type, [(s.name, dict(s.labels), float(s.value)) for s in one.samples])
        for one in metrics
    ]


def lasting(families: Iterable[Family]) -> list[Family]:
    """What outlives a process: counters and histograms, but no gauges."""
    return [family for family in families if family.kind != "gauge"]


def merge(processes: Iterable[Iterable[Family]]) -> list[Metric]:
    """One collection: counters, histograms and most gauges add up, of those in LARGEST the largest counts."""
    merged: dict[str, _Merged] = {}
    for families in processes:
        for family in families:
            one = merged.get(family.name)
            if one is None:
                one = merged[family.name] = _Merged(Metric(family.name, family.text, family.kind), {})
            _add(one.values, family)
    for one in merged.values():
        for (name, labels), value in one.values.items():
            one.metric.add_sample(name, dict(labels), value)
    return [one.metric for one in merged.values()]


def _add(values: dict[tuple[str, tuple[tuple[str, str], ...]], float], family: Family) -> None:
    largest = family.kind == "gauge" and family.name in LARGEST
    for name, labels, value in family.samples:
        key = name, tuple(labels.items())
        known = values.get(key)
        if known is None:
            values[key] = value
        else:
            values[key] = max(known, value) if largest else known + value
