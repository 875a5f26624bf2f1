"""Prometheus metrics of the shim. What the Driver knows is read when it is asked for, and costs nothing before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_shim.core.fates import Fate
from engine_shim.core.meetings import Meetings
from engine_shim.core.traffic import Flow, Pushes, Traffic
from engine_shim.driver import Driver
from engine_shim.driver.hand_over import HandOver
from engine_shim.driver.recall import RESULTS, Recall
from engine_shim.serve.expert_metrics import expert_metrics
from engine_shim.serve.intake import Endpoint
from engine_shim.serve.usage import Tally
from router.contract.instance import Instance

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "tandem_shim_"
_GAUGES = {
    "running_seqs": "Sequences in the running batch",
    "waiting_seqs": "Sequences that wait for the engine or for their KV cache",
    "queued_prompt_tokens": "Prompt tokens that wait for their prefill",
    "free_blocks": "Blocks that a new sequence may take",
    "held_blocks": "Blocks pinned for a transfer",
    "quarantined_blocks": "Held blocks whose request is over and that somebody might still write",
    "live_transfers": "Copies that are posted and have not ended",
    "open_tickets": "Rendezvous that have neither landed nor become void",
}
_ENGINE_GAUGES = {
    "parked_seqs": "Sequences that wait for their KV cache",
    "total_blocks": "Blocks of the KV cache",
}
_ENGINE_COUNTERS = {
    "preemptions": "Sequences that were put back to free blocks",
    "prefix_hit_tokens": "Prompt tokens found in the prefix cache",
    "prefix_query_tokens": "Prompt tokens looked up in the prefix cache",
}


class ShimMetrics:
    """What the shim counts, and what it reads of its Driver."""

    def __init__(self, driver: Driver) -> None:
        """Count from zero, in a registry of its own."""
        self._registry = CollectorRegistry()
        self._registry.register(_DriverCollector(driver))
        self._named = CollectorRegistry()
        self._named.register(_Named(self._registry, driver.instance))
        self._requests = Counter(
            f"{_PREFIX}requests", "Requests that ended, by error code", ["endpoint", "code"], registry=self._registry
        )
        self._prompt_tokens = Counter(
            f"{_PREFIX}prompt_tokens", "Prompt tokens of answered requests", registry=self._registry
        )
        self._generation_tokens = Counter(f"{_PREFIX}generation_tokens", "Tokens generated", registry=self._registry)

    def count_request(self, endpoint: Endpoint, code: str) -> None:
        """One more request has ended: `ok`, `client_gone`, or the code of its error."""
        self._requests.labels(str(endpoint), code).inc()

    def count_tokens(self, tally: Tally) -> None:
        """A request's tokens, once it has ended; one that brought no token counts nothing."""
        if tally.completion_tokens:
            self._prompt_tokens.inc(tally.prompt_tokens)
            self._generation_tokens.inc(tally.completion_tokens)

    def text(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return generate_latest(self._named)


class _Named(Collector):
    """Every sample of a registry, with the name and the role of the instance; when a counter began is left out."""

    def __init__(self, registry: CollectorRegistry, instance: Instance) -> None:
        self._registry = registry
        self._labels = {"instance_id": instance.instance_id, "role": instance.role.value}

    def describe(self) -> list[Metric]:
        """Nothing to read at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See the class."""
        for metric in self._registry.collect():
            counted = [one for one in metric.samples if not one.name.endswith("_created")]
            metric.samples = [one._replace(labels=one.labels | self._labels) for one in counted]
            yield metric


class _DriverCollector(Collector):
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def describe(self) -> list[Metric]:
        """Nothing to read at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The Driver's state of this moment."""
        load, engine = asdict(self._driver.load()), asdict(self._driver.engine_load())
        for name, about in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, about, load[name])
        for name, about in _ENGINE_GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, about, engine[name])
        for name, about in _ENGINE_COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, about, engine[name])
        yield from expert_metrics(self._driver.engine_load())
        ready = GaugeMetricFamily(f"{_PREFIX}ready", "1 while this instance takes requests", int(self._driver.ready))
        yield ready
        if self._driver.recall is not None:
            yield from _recall_metrics(self._driver.recall)
        if self._driver.hand_over is not None:
            yield from _hand_over_metrics(self._driver.hand_over)


def _hand_over_metrics(hand_over: HandOver) -> Iterator[Metric]:
    orphaned = "Quarantined blocks whose writer cannot be reached: they wait for its answer or for proof of its death"
    yield GaugeMetricFamily(f"{_PREFIX}orphaned_blocks", orphaned, hand_over.num_orphaned_blocks)
    peers = GaugeMetricFamily(f"{_PREFIX}peers", "Peers by what has become of them", labels=["fate"])
    for fate in (Fate.MET, Fate.LOST, Fate.DEAD):
        peers.add_metric([fate], len(hand_over.peers.with_fate(fate)))
    yield peers
    facts = CounterMetricFamily(
        f"{_PREFIX}facts", "What has gone wrong between this engine and others", labels=["fact"]
    )
    for fact, count in hand_over.counts().items():
        facts.add_metric([fact], count)
    yield facts
    yield from _meeting_metrics(hand_over.meetings)
    moved = "Bytes of KV cache that were posted to be copied"
    yield CounterMetricFamily(f"{_PREFIX}kv_bytes", moved, hand_over.copies.num_bytes_moved)
    yield from _push_metrics(hand_over.prefill.pushes)
    yield from _traffic_metrics(hand_over.copies.traffic)


def _recall_metrics(recall: Recall) -> Iterator[Metric]:
    about = "Prompts whose KV an earlier turn's decode was asked for, by what came of it"
    results = CounterMetricFamily(f"{_PREFIX}recalls", about, labels=["result"])
    for result in RESULTS:
        results.add_metric([result], recall.results[result])
    yield results
    yield CounterMetricFamily(f"{_PREFIX}recalled_tokens", "Tokens whose KV came back from decode", recall.num_tokens)


def _push_metrics(pushes: Pushes) -> Iterator[Metric]:
    yield CounterMetricFamily(f"{_PREFIX}pushes", "Requests whose KV cache began to be pushed", pushes.num_pushes)
    writes = CounterMetricFamily(
        f"{_PREFIX}push_writes", "WRITEs of pushes: early, or when prefill was done", labels=["when"]
    )
    sizes = CounterMetricFamily(f"{_PREFIX}push_bytes", "Their bytes", labels=["when"])
    for when in pushes.writes:
        writes.add_metric([when], pushes.writes[when])
        sizes.add_metric([when], pushes.num_bytes[when])
    yield writes
    yield sizes


def _traffic_metrics(traffic: Traffic) -> Iterator[Metric]:
    flows = tuple(traffic.flows.items())
    copies = CounterMetricFamily(f"{_PREFIX}copies", "Copies that ended, by peer", labels=["peer", "op", "result"])
    for (peer, op), flow in flows:
        copies.add_metric([peer, op, "done"], flow.done)
        copies.add_metric([peer, op, "failed"], flow.failed)
    yield copies
    carried: dict[str, tuple[str, Callable[[Flow], float]]] = {
        "copy_bytes": ("Bytes of copies that are done, by peer", lambda flow: flow.num_bytes),
        "copy_spans": ("Their contiguous pieces", lambda flow: flow.num_spans),
        "copy_seconds": ("Their durations, from the order to the observed end", lambda flow: flow.seconds),
    }
    for name, (about, value) in carried.items():
        family = CounterMetricFamily(_PREFIX + name, about, labels=["peer", "op"])
        for (peer, op), flow in flows:
            family.add_metric([peer, op], value(flow))
        yield family


def _meeting_metrics(meetings: Meetings) -> Iterator[Metric]:
    first = CounterMetricFamily(f"{_PREFIX}rendezvous", "Which side came first to the Rendezvous", labels=["first"])
    for side, count in meetings.first.items():
        first.add_metric([side], count)
    yield first
    text = "How long the side that was first waited for the other"
    waits = HistogramMetricFamily(f"{_PREFIX}rendezvous_wait_seconds", text, labels=["waited"])
    for side, durations in meetings.waits.items():
        waits.add_metric([side], durations.buckets(), durations.total_s)
    yield waits
    text, moved = "From the meeting of seats and finished prefill to the end of the copy", meetings.moved
    yield HistogramMetricFamily(f"{_PREFIX}transfer_seconds", text, moved.buckets(), moved.total_s)
