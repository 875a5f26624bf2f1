"""Vitals: what the router makes of its instances and of its own limits, as metrics. Read at each scrape only."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import Metric

from router.core.health import STATES
from router.driver.router import Router
from router.observe.families import counters, gauge

MAX_NAMED = 64
"""Instances beyond so many that are not trusted are counted, not named."""

LATE = ("ahead", "overtaken", "nobody")
"""Before prefill's answer, because of it, or not at all."""
HEDGED = ("sent", "won", "lost", "failed", "denied", "nobody")


def health_metrics(router: Router) -> list[Metric]:
    """Breakers, rests and probes: how many instances are in each state, and which ones are not trusted."""
    health, late = router.health, router.desk.rules.late
    states = {
        member.instance.instance_id: health.state_of(member.instance.instance_id) for member in router.fleet.members
    }
    counts = Counter(states.values())
    named = [((name, state), 1.0) for name, state in sorted(states.items()) if state != "closed"][:MAX_NAMED]
    return [
        gauge(
            "tandem_instance_health",
            "Instances by what this router holds against them; closed is well",
            [((state,), float(counts[state])) for state in STATES],
            ("state",),
        ),
        gauge("tandem_instance_shut", "1 for each instance that is not closed", named, ("instance_id", "state")),
        counters("tandem_breaker_trips", "Breakers that opened", "of", dict(health.trips), ("instance", "pair")),
        counters("tandem_retries_denied", "Retries that were not made", "why", {"budget": router.retries_denied}),
        counters("tandem_late_choices", "Decodes chosen late", "result", late.choices if late else {}, LATE),
        counters("tandem_hedges", "Second attempts beside late first ones", "result", router.hedges, HEDGED),
    ]


def line_metrics(router: Router) -> list[Metric]:
    """Who waits for admission."""
    admission = router.admission
    return [
        gauge("tandem_queue_requests", "Requests that wait for admission", [((), float(admission.waiting))]),
        gauge("tandem_queue_tokens", "Their estimated prompt tokens", [((), float(admission.waiting_tokens))]),
    ]
