"""Metric families from plain counts: what a collector yields at a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from router.observe.histogram import Histogram

Labels = tuple[str, ...]


def counters(name: str, text: str, label: str, counts: Mapping[str, float], always: Iterable[str] = ()) -> Metric:
    """A counter family with one label. What is named in `always` is there from the start, at 0.

    Prometheus sees only what a counter gains from one scrape to the next: one that begins at 1 hides its first event.
    """
    counted = dict.fromkeys(always, 0.0) | dict(tuple(counts.items()))
    return counter(name, text, (label,), {(value,): count for value, count in counted.items()})


def counter(name: str, text: str, labels: Labels, counts: Mapping[Labels, float]) -> Metric:
    """A counter family, by label values."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in tuple(counts.items()):
        family.add_metric(values, count)
    return family


def gauge(name: str, text: str, values: Iterable[tuple[Labels, float]], labels: Labels = ()) -> Metric:
    """A gauge family of these (label values, value)."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def histogram(name: str, text: str, labels: Labels, histograms: Iterable[tuple[Labels, Histogram]]) -> Metric:
    """A histogram family of these (label values, histogram); those that have seen nothing are left out."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, one in histograms:
        if any(one.counts):
            family.add_metric(values, one.buckets(), one.total)
    return family
