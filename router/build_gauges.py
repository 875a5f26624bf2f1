"""Gauges of one router: what its parts show when somebody scrapes. Part of the build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from router.contract.instance import Role
from router.core.fleet import Member
from router.core.recovery import OVERDUE, OWNER_GONE
from router.driver.mend import FREED, LOST
from router.driver.reaper import Reaper
from router.driver.screen import BAD_HOST, REASONS
from router.observe.families import counter, counters, gauge
from router.store.ledger import Ledger
from router.vitals import health_metrics, line_metrics

if TYPE_CHECKING:
    from router.build import Parts


def _num_bad(parts: Parts) -> int:
    return parts.servers.num_bad if parts.servers is not None else 0


def _dropped_bytes(parts: Parts) -> float:
    return float(parts.request_log.dropped_bytes) if parts.request_log is not None else 0.0


_WHO = ("role", "draining")
UNREADABLE = "unreadable"
"""Left out because this release cannot read its record in the store."""
TOLD = ("told", "refused", "failed")


def _instances(members: Sequence[Member]) -> list[tuple[tuple[str, ...], float]]:
    """Of every role there is a count, so that an empty pool is a 0 and not a gap."""
    counts = dict.fromkeys(product(Role, ("false", "true")), 0)
    for member in members:
        counts[member.instance.role, str(member.instance.draining).lower()] += 1
    return [(values, float(count)) for values, count in counts.items()]


def _left_out(parts: Parts) -> list[tuple[tuple[str, ...], float]]:
    counts = parts.watch.screen.left_out
    if parts.servers is not None:
        counts[BAD_HOST] += parts.servers.num_refused  # those whose URL is of no form are not listed at all
    if parts.fleet_store is not None:
        counts[UNREADABLE] = parts.fleet_store.unreadable
    return [((reason,), float(counts[reason])) for reason in (*REASONS, UNREADABLE)]


def gauges(parts: Parts) -> list[Metric]:
    """What is measured at each scrape rather than counted as it happens."""
    router, members = parts.router, parts.router.fleet.members
    in_flight = {role: 0 for role in ("prefill", "decode", "both")}
    for member in members:
        in_flight[member.instance.role] += member.burden.requests
    connections = [((url,), float(pool.num_live)) for url, pool in router.pools().items()]
    return [
        gauge("tandem_requests_in_flight", "Requests being carried out", [((), float(router.admission.requests))]),
        gauge("tandem_open_tickets", "Attempts whose outcome is open", [((), float(len(router.live)))]),
        gauge(
            "tandem_legs_in_flight",
            "Legs on their way, by role of the instance",
            [((role,), float(count)) for role, count in in_flight.items()],
            ("role",),
        ),
        counters("tandem_take_backs", "Engines told that an attempt is over", "result", router.take_backs, TOLD),
        counters(
            "tandem_mends", "Prompts computed anew to free decode's blocks", "result", router.mended, (FREED, LOST)
        ),
        gauge("tandem_engine_connections", "Open connections to engines", connections, ("url",)),
        *health_metrics(router),
        gauge("tandem_settings_bad", "1 while changed settings cannot be used", [((), float(parts.governor.bad))]),
        gauge(
            "tandem_settings_refused", "Settings that wait for a restart", [((), float(len(parts.governor.refused)))]
        ),
        gauge("tandem_fleet_lists_bad", "Lists of engines that cannot be read", [((), float(_num_bad(parts)))]),
        gauge(
            "tandem_instances_left_out", "Instances to which nothing may go, by reason", _left_out(parts), ("reason",)
        ),
        gauge("tandem_instances", "Live instances, by role and whether they are draining", _instances(members), _WHO),
        *line_metrics(router),
        gauge("tandem_store_degraded", "1 while the store does not answer", [((), float(parts.degraded))]),
        counter(
            "tandem_log_dropped_bytes", "Request log that its reader has not taken", (), {(): _dropped_bytes(parts)}
        ),
        *((parts.tracing.metric(),) if parts.tracing is not None else ()),
        *(_recovery_metrics(parts.reaper) if parts.reaper is not None else ()),
        *(_ledger_metrics(parts.ledger) if parts.ledger is not None else ()),
    ]


def _recovery_metrics(reaper: Reaper) -> list[Metric]:
    return [
        counters(
            "tandem_reaped_tickets",
            "Tickets ended for others, by reason",
            "reason",
            reaper.reaped,
            (OWNER_GONE, OVERDUE),
        ),
        counters("tandem_reaper_calls", "The same for attempts of others", "result", reaper.calls, TOLD),
        gauge("tandem_orphaned_tickets", "Tickets claimed here and not ended yet", [((), float(reaper.held))]),
    ]


def _ledger_metrics(ledger: Ledger) -> list[Metric]:
    text = "Entries of the ledger, by what became of them"
    return [counters("tandem_ledger_entries", text, "result", asdict(ledger.counts))]
