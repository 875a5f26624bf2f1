"""Metrics of an engine whose experts are shared by ranks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily

from engine_shim.engine.port import EngineLoad

_PREFIX = "tandem_shim_expert_"


def expert_metrics(load: EngineLoad) -> Iterator[Metric]:
    """Where the time of dispatch and combine goes, and how evenly tokens come to the ranks; nothing without ranks."""
    if not load.expert_ranks:
        return
    halves = {
        "dispatch": SummaryMetricFamily(f"{_PREFIX}dispatch_seconds", "Packing and posting rows", labels=["rank"]),
        "combine": SummaryMetricFamily(f"{_PREFIX}combine_seconds", "Packing and posting answers", labels=["rank"]),
    }
    waits = SummaryMetricFamily(
        f"{_PREFIX}wait_seconds", "Waiting for other ranks; a slow one shows at the others", labels=["rank", "phase"]
    )
    rows = CounterMetricFamily(f"{_PREFIX}tokens", "Rows that came for the experts of each rank", labels=["rank"])
    for rank, one in enumerate(load.expert_ranks):
        halves["dispatch"].add_metric([str(rank)], one.num_steps, one.dispatch_s)
        halves["combine"].add_metric([str(rank)], one.num_steps, one.combine_s)
        waits.add_metric([str(rank), "dispatch"], one.num_steps, one.dispatch_wait_s)
        waits.add_metric([str(rank), "combine"], one.num_steps, one.combine_wait_s)
        rows.add_metric([str(rank)], one.rows)
    yield from halves.values()
    yield waits
    yield rows
    restarts = "Times that all ranks were started again because one had ended"
    yield CounterMetricFamily(f"{_PREFIX}restarts", restarts, load.expert_restarts)
