"""Telemetry: metrics, one log line and a place among the last records per request, all folded from its Record.

Nothing else of the router counts anything while a request runs. A collector turns what is counted into Prometheus
families when somebody scrapes; README.md beside this file is the list of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from router.contract.ledger import Outcome
from router.core.record import Record
from router.core.tail import Tail
from router.observe.families import Labels, counter, counters, histogram
from router.observe.histogram import Histogram
from router.observe.recent import Recent
from router.observe.series import Phases, Series

_SERVED, _ABANDONED = Outcome.SERVED, Outcome.ABANDONED

MAX_VALUES = 64
"""Models, and error codes, beyond so many are counted as `other`: labels must not grow with what others send."""


RETRIED = ("prefill_unreachable", "decode_unreachable", "leg_broken", "no_seats", "transfer_failed", "peer_gone")
"""What most often leads to another attempt."""
CANCEL_PHASES = ("prefill", "first_token", "stream")


class Tally:
    """Requests that were alike in every label, and where their times belong."""

    __slots__ = ("completion_tokens", "count", "counted_tokens", "phases", "prompt_tokens", "series")

    def __init__(self, series: Series, phases: Phases) -> None:
        self.count = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.counted_tokens = 0
        """Events of streams that told no usage; about as many tokens."""
        self.series = series
        self.phases = phases


_SeriesKey = tuple[str, str, bool, str]
"""model, endpoint, stream, mode"""
_TallyKey = tuple[str, str, bool, str, str, Outcome, str]
"""The same, and reason, outcome, code."""
Gauges = Callable[[], Iterable[Metric]]
"""Called at each scrape for what is measured elsewhere."""
Told = Callable[[Record], None]
"""Whoever else is told of each finished request: the log, the traces."""


class Telemetry(Collector):
    """Books of one router. `fold` is called by the event loop, `render` by any thread."""

    def __init__(self, *told: Told) -> None:
        self._told = told
        self.recent = Recent()
        self._series: dict[_SeriesKey, Series] = {}
        self._phases: dict[str, Phases] = {}
        """By mode."""
        self._tallies: dict[_TallyKey, Tally] = {}
        self._retries: dict[str, int] = {}
        self._cancels: dict[str, int] = {}
        self._models: set[str] = set()
        self._codes: set[str] = set(RETRIED)
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

    def tell(self, told: Told, *, wanted: bool) -> None:
        """`told` hears of each finished request from here on, or no longer."""
        others = tuple(one for one in self._told if one != told)
        self._told = (*others, told) if wanted else others

    def fold(self, record: Record, passed: Tail | None = None) -> None:
        """The request is counted, kept for a while, logged and traced; `passed` is how its stream came."""
        outcome = record.outcome
        key = (record.model, record.endpoint, record.stream, record.mode, record.reason, outcome, record.code)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tally(record)
        tally.count += 1
        if outcome is _SERVED:
            # Only good answers are measured: a fast error is no fast answer.
            tally.prompt_tokens += record.prompt_tokens
            if record.completion_tokens:
                tally.completion_tokens += record.completion_tokens
            else:
                tally.counted_tokens += record.num_events
            tally.series.add(record, passed)
            tally.phases.add(record)
        elif outcome is _ABANDONED:
            self._count_cancel(record)
        self.recent.add(record)
        for tell in self._told:
            tell(record)

    def _tally(self, record: Record) -> Tally:
        """The Tally of requests like this one. A client chooses its model's name, so not every name gets a label."""
        placed = record.attempts or record.model in self._models
        model = _bounded(record.model, self._models) if placed else "other"
        series_key = (model, record.endpoint, record.stream, record.mode)
        series = self._series.setdefault(series_key, Series())
        phases = self._phases.setdefault(record.mode, Phases())
        key = (*series_key, record.reason, record.outcome, _bounded(record.code, self._codes))
        return self._tallies.setdefault(key, Tally(series, phases))

    def count_retry(self, reason: str) -> None:
        """A request goes into another attempt because of this error code."""
        reason = _bounded(reason, self._codes)
        self._retries[reason] = self._retries.get(reason, 0) + 1

    def _count_cancel(self, record: Record) -> None:
        phase = "stream" if record.first_byte_s else "first_token" if record.prefilled_s else "prefill"
        self._cancels[phase] = self._cancels.get(phase, 0) + 1

    # Collector.

    def collect(self) -> Iterator[Metric]:
        """All families. Runs in the scrape's thread; copies are taken before anything is walked."""
        yield from self._latencies()
        yield from self._phase_families()
        yield from self._counts()
        text = "Attempts after the first, by the error that led to them"
        yield counters("tandem_retries", text, "reason", self._retries, RETRIED)
        yield counters("tandem_cancels", "Clients that left, by phase", "phase", self._cancels, CANCEL_PHASES)
        for gauges in self._gauges:
            yield from gauges()

    def _latencies(self) -> Iterator[Metric]:
        families = {
            "ttft": ("tandem_ttft_seconds", "Request read to first streamed content"),
            "tpot": ("tandem_tpot_seconds", "Time per token after the first"),
            "itl": ("tandem_itl_seconds", "Between two pieces of a stream"),
            "e2e": ("tandem_e2e_seconds", "Request read to end of answer"),
            "overhead": ("tandem_router_overhead_seconds", "Request read to both legs sent, less its time in a queue"),
        }
        all_series = tuple(self._series.items())
        for attribute, (name, text) in families.items():
            rows: list[tuple[Labels, Histogram]] = [
                ((model, endpoint, str(stream).lower(), mode), getattr(series, attribute))
                for (model, endpoint, stream, mode), series in all_series
            ]
            yield histogram(name, text, ("model", "endpoint", "stream", "mode"), rows)

    def _phase_families(self) -> Iterator[Metric]:
        by_mode = tuple(self._phases.items())
        yield histogram(
            "tandem_phase_seconds",
            "Time in each phase of a request",
            ("phase", "mode"),
            [((phase, mode), one) for mode, phases in by_mode for phase, one in phases.of.items()],
        )
        yield histogram(
            "tandem_rendezvous_wait_seconds",
            "How long the side that was first waited for the other",
            ("waited",),
            [((waited,), one) for mode, phases in by_mode for waited, one in phases.waits.items() if mode == "push"],
        )
        yield histogram(
            "tandem_overlap_gained_seconds",
            "What pushing saved: the part of registration that passed while prefill computed",
            (),
            [((), phases.overlap) for mode, phases in by_mode if mode == "push"],
        )
        first: Counter[str] = Counter()
        for _, phases in by_mode:
            first.update(phases.first)
        yield counters("tandem_rendezvous", "Which side came first to the Rendezvous", "first", first)

    def _counts(self) -> Iterator[Metric]:
        requests: Counter[Labels] = Counter()
        placements: Counter[Labels] = Counter()
        fallbacks: Counter[Labels] = Counter()
        prompts: Counter[Labels] = Counter()
        completions: Counter[Labels] = Counter()
        for (model, endpoint, stream, mode, reason, outcome, code), tally in tuple(self._tallies.items()):
            requests[model, endpoint, str(stream).lower(), mode, outcome, code] += tally.count
            if mode:
                placements[mode, reason] += tally.count
            if mode == "local" and reason != "configured":
                fallbacks[reason,] += tally.count
            prompts[model,] += tally.prompt_tokens
            completions[model, "usage"] += tally.completion_tokens
            completions[model, "events"] += tally.counted_tokens
        labels = ("model", "endpoint", "stream", "mode", "outcome", "code")
        yield counter("tandem_requests", "Requests that are over", labels, requests)
        yield counter("tandem_placement", "Requests placed", ("mode", "reason"), placements)
        text = "Requests that one engine served alone although they might have been split"
        yield counter("tandem_local_fallbacks", text, ("reason",), fallbacks)
        yield counter("tandem_prompt_tokens", "Prompt tokens that usage told", ("model",), prompts)
        text = "Tokens of good answers, as usage told them or, without it, as events were counted"
        yield counter("tandem_completion_tokens", text, ("model", "source"), completions)


def _bounded(value: str, known: set[str]) -> str:
    """The value while there are few of them, then `other`."""
    if value not in known and len(known) >= MAX_VALUES:
        return "other"
    known.add(value)
    return value
