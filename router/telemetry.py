"""Telemetry: metrics and one log line per request, both folded from its Record when it is over.

Nothing else of the router counts anything while a request runs. Histograms are plain lists, because one fold then costs
a few microseconds; a collector turns them into Prometheus families when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from router.contract.ledger import Outcome
from router.core.record import Record

# vLLM's buckets of the same quantity, so that dashboards can lay one over the other.
_SHORT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0)
TTFT_S = (*_SHORT_S, 1.5, 2.0, 2.5, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
# Fine from 5 to 12 ms: push and pull differ there, and vLLM's first bucket is 10 ms wide.
_STEP_S = (0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.0115, 0.013, 0.015, 0.02, 0.025)
TPOT_S = (*_STEP_S, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
E2E_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 240.0, 600.0)
OVERHEAD_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
PHASE_S = TTFT_S

_SERVED = Outcome.SERVED

MAX_MODELS = 64
"""Models beyond so many are counted as `other`: a label must not grow with what clients send."""


class Histogram:
    """Counts per bucket, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One more observation; a bucket includes its upper bound."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts as Prometheus wants them, `+Inf` last."""
        names = [*(str(bound) for bound in self._bounds), "+Inf"]
        return list(zip(names, (float(count) for count in accumulate(self.counts)), strict=True))


class Series:
    """The histograms of one (model, endpoint, stream, mode)."""

    __slots__ = ("e2e", "overhead", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_S)
        self.tpot = Histogram(TPOT_S)
        self.e2e = Histogram(E2E_S)
        self.overhead = Histogram(OVERHEAD_S)


class Tally:
    """Requests that were alike in every label, and the Series that their times belong to."""

    __slots__ = ("count", "series")

    def __init__(self, series: Series) -> None:
        self.count = 0
        self.series = series


SeriesKey = tuple[str, str, bool, str]
Gauges = Callable[[], Iterable[Metric]]
"""Called at each scrape for what is measured elsewhere."""


class Telemetry(Collector):
    """Books of one router. `fold` is called by the event loop, `render` by any thread."""

    def __init__(self, log: Callable[[Record], None] | None) -> None:
        """`log` is called with each finished Record, or None: no log lines."""
        self._log = log
        self._series: dict[SeriesKey, Series] = {}
        self._phases = {name: Histogram(PHASE_S) for name in ("prefill", "first_token", "stream")}
        self._tallies: dict[tuple[str, str, bool, str, str, Outcome, str], Tally] = {}
        """By model, endpoint, stream, mode, reason, outcome, code."""
        self._retries: dict[str, int] = {}
        self._cancels: dict[str, int] = {}
        self._models: set[str] = set()
        self._gauges: list[Gauges] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def watch(self, gauges: Gauges) -> None:
        """These gauges are part of each scrape."""
        self._gauges.append(gauges)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    # Books.

    def fold(self, record: Record) -> None:
        """The request is counted, and logged."""
        key = (
            record.model,
            record.endpoint,
            record.stream,
            record.mode,
            record.reason,
            record.outcome,
            record.code,
        )
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tally(record)
        tally.count += 1
        if record.outcome is _SERVED:
            self._measure(tally.series, record)
        elif record.outcome is Outcome.ABANDONED:
            self._count_cancel(record)
        if self._log is not None:
            self._log(record)

    def _tally(self, record: Record) -> Tally:
        """The Tally of requests like this one. A client chooses its model's name, so not every name gets a label."""
        model = record.model if record.attempts or record.model in self._models else "other"
        if model not in self._models and len(self._models) >= MAX_MODELS:
            model = "other"
        self._models.add(model)
        series_key = (model, record.endpoint, record.stream, record.mode)
        series = self._series.setdefault(series_key, Series())
        key = (*series_key, record.reason, record.outcome, record.code)
        return self._tallies.setdefault(key, Tally(series))

    def _measure(self, series: Series, record: Record) -> None:
        """Only good answers are measured: a fast error is no fast answer."""
        series.e2e.add(record.ended_s)
        series.overhead.add(record.placed_s)
        phases = self._phases
        if record.prefilled_s:
            phases["prefill"].add(record.prefilled_s - record.sent_s)
        if not record.stream:
            return
        streamed_s = record.last_byte_s - record.first_byte_s
        series.ttft.add(record.first_byte_s)
        phases["first_token"].add(record.first_byte_s - record.sent_s)
        phases["stream"].add(streamed_s)
        # From usage where the client asked for it; otherwise engines send an event per step, less `[DONE]`.
        tokens = record.completion_tokens or record.num_events - 1
        if tokens > 1:
            series.tpot.add(streamed_s / (tokens - 1))

    def count_retry(self, reason: str) -> None:
        """A request goes into another attempt because of this error code."""
        self._retries[reason] = self._retries.get(reason, 0) + 1

    def _count_cancel(self, record: Record) -> None:
        phase = "stream" if record.first_byte_s else "first_token" if record.prefilled_s else "prefill"
        self._cancels[phase] = self._cancels.get(phase, 0) + 1

    # Collector.

    def collect(self) -> Iterator[Metric]:
        """All families. Runs in the scrape's thread; copies are taken before anything is walked."""
        yield from self._histograms()
        yield self._requests_family()
        yield counters(
            "tandem_retries", "Attempts after the first, by the error that led to them", "reason", self._retries
        )
        yield counters("tandem_cancels", "Clients that left, by phase", "phase", self._cancels)
        yield self._placements_family()
        for gauges in self._gauges:
            yield from gauges()

    def _histograms(self) -> Iterator[Metric]:
        labels = ("model", "endpoint", "stream", "mode")
        families = {
            "ttft": HistogramMetricFamily("tandem_ttft_seconds", "Request read to first streamed byte", labels=labels),
            "tpot": HistogramMetricFamily("tandem_tpot_seconds", "Time per token after the first", labels=labels),
            "e2e": HistogramMetricFamily("tandem_e2e_seconds", "Request read to end of answer", labels=labels),
            "overhead": HistogramMetricFamily(
                "tandem_router_overhead_seconds", "Request read to both legs sent", labels=labels
            ),
        }
        for (model, endpoint, stream, mode), series in tuple(self._series.items()):
            for name, family in families.items():
                histogram: Histogram = getattr(series, name)
                if any(histogram.counts):
                    values = (model, endpoint, str(stream).lower(), mode)
                    family.add_metric(values, histogram.buckets(), histogram.total)
        yield from families.values()
        phases = HistogramMetricFamily("tandem_phase_seconds", "Time in each phase of a request", labels=("phase",))
        for name, histogram in self._phases.items():
            phases.add_metric((name,), histogram.buckets(), histogram.total)
        yield phases

    def _requests_family(self) -> Metric:
        labels = ("model", "endpoint", "stream", "mode", "outcome", "code")
        family = CounterMetricFamily("tandem_requests", "Requests that are over", labels=labels)
        counts: Counter[tuple[str, ...]] = Counter()
        for (model, endpoint, stream, mode, _, outcome, code), tally in tuple(self._tallies.items()):
            counts[model, endpoint, str(stream).lower(), mode, outcome, code] += tally.count
        for values, count in counts.items():
            family.add_metric(values, count)
        return family

    def _placements_family(self) -> Metric:
        family = CounterMetricFamily("tandem_placement", "Requests placed", labels=("mode", "reason"))
        counts: Counter[tuple[str, str]] = Counter()
        for (_, _, _, mode, reason, _, _), tally in tuple(self._tallies.items()):
            counts[mode, reason] += tally.count
        for values, count in counts.items():
            if values[0]:
                family.add_metric(values, count)
        return family


def counters(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    """A counter family with one label."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in tuple(counts.items()):
        family.add_metric((value,), count)
    return family


def gauge(
    name: str, text: str, values: Iterable[tuple[tuple[str, ...], float]], labels: tuple[str, ...] = ()
) -> Metric:
    """A gauge family of these (label values, value)."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
