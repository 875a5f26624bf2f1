"""Rows about what clients get: times, goodput, errors, and push beside pull."""

from __future__ import annotations

from deploy.dashboards.panels import Kind, Panel, Query, Row, Unit, lines, number, split
from deploy.dashboards.promql import MODEL, mean, quantile, rate, total

TTFT, TPOT, E2E = "tandem_ttft_seconds", "tandem_tpot_seconds", "tandem_e2e_seconds"
REQUESTS = "tandem_requests_total"
STREAM = 'stream="true"'
OURS = 'outcome="failed"'
"""Requests that a client may blame on the deployment; what was refused was asked in a wrong way, or too often."""
JUDGED = 'outcome!~"abandoned|refused"'

BEFORE_TOKENS = 'phase!~"door|place|stream"'

_streams = rate(REQUESTS, MODEL, STREAM, JUDGED)
_quick = rate(f"{TTFT}_bucket", MODEL, 'le="$ttft_slo"')
_fluent = rate(f"{TPOT}_bucket", MODEL, 'le="$tpot_slo"')
_measured = rate(f"{TPOT}_count", MODEL)
_good = f"clamp_min({_quick} + {_fluent} - {_measured}, 0)"
"""Streams that are both, at least: those that are one of the two may all be others."""
_failing = f"({rate(REQUESTS, MODEL, OURS)} or vector(0)) / {rate(REQUESTS, MODEL, JUDGED)}"


def _p50_p90_p99(metric: str) -> dict[str, str]:
    return {f"p{share * 100:g}": quantile(share, metric, MODEL) for share in (0.5, 0.9, 0.99)}


NOW = Row(
    "Now",
    (
        number("Requests per second", Unit.REQUESTS_PER_S, "Requests that ended, per second.", rate(REQUESTS, MODEL)),
        number("TTFT p90", Unit.SECONDS, "Request read to first streamed content.", quantile(0.9, TTFT, MODEL)),
        number("TPOT p90", Unit.SECONDS, "Time per token after the first.", quantile(0.9, TPOT, MODEL)),
        number("Within both SLOs, at least", Unit.SHARE, "See Goodput.", f"clamp_max({_good} / {_streams}, 1)"),
        number("Failed", Unit.SHARE, "Of the requests that were neither refused nor abandoned.", _failing),
        number(
            "In flight",
            Unit.COUNT,
            "Requests being carried out, waiting ones not included.",
            total("tandem_requests_in_flight"),
        ),
    ),
)

SERVICE = Row(
    "What clients get",
    (
        lines(
            "Time to first token",
            Unit.SECONDS,
            "From the moment in which the request had been read to the first event with content; good streams only.",
            **_p50_p90_p99(TTFT),
        ),
        lines("Time per output token", Unit.SECONDS, "After the first token; good streams only.", **_p50_p90_p99(TPOT)),
        lines("End to end", Unit.SECONDS, "Good answers, streamed or not.", **_p50_p90_p99(E2E)),
        lines(
            "Goodput",
            Unit.SHARE,
            "Share of streams within the SLOs chosen above; failed ones are outside. Histograms do not tell which "
            "request was both quick and fluent, so `both` is what must be so at least.",
            TTFT_within_SLO=f"clamp_max({_quick} / {_streams}, 1)",
            TPOT_within_SLO=f"clamp_max({_fluent} / {_measured}, 1)",
            both_at_least=f"clamp_max({_good} / {_streams}, 1)",
        ),
        split(
            "Requests",
            Unit.REQUESTS_PER_S,
            "By outcome.",
            rate(REQUESTS, MODEL, by="outcome"),
            "{{outcome}}",
            stacked=True,
        ),
        split(
            "Errors",
            Unit.REQUESTS_PER_S,
            "By error code: failed requests are the deployment's fault, refused ones the caller's or the limits'.",
            rate(REQUESTS, MODEL, 'outcome=~"failed|refused"', by="outcome, code"),
            "{{outcome}} {{code}}",
            stacked=True,
        ),
    ),
)


MODES = Row(
    "Push beside pull",
    (
        split(
            "Time to first token p50, by mode",
            Unit.SECONDS,
            "Push registers decode's seats while prefill computes, pull begins when prefill has ended.",
            quantile(0.5, TTFT, MODEL, by="mode"),
            "{{mode}}",
        ),
        split(
            "Time to first token p99, by mode",
            Unit.SECONDS,
            "The same for the slowest in a hundred.",
            quantile(0.99, TTFT, MODEL, by="mode"),
            "{{mode}}",
        ),
        split(
            "Time per output token p90, by mode",
            Unit.SECONDS,
            "A hand-over should leave it as it is; local prefills disturb those who decode.",
            quantile(0.9, TPOT, MODEL, by="mode"),
            "{{mode}}",
        ),
        split(
            "Requests placed, by mode",
            Unit.REQUESTS_PER_S,
            "With the reason of the placement: `configured`, or why another mode was taken.",
            rate("tandem_placement_total", by="mode, reason"),
            "{{mode}}: {{reason}}",
            stacked=True,
        ),
        lines(
            "Saved by pushing",
            Unit.SECONDS,
            "Mean part of registration that passed while prefill still computed, per request.",
            saved=mean("tandem_overlap_gained_seconds"),
        ),
        split(
            "Decode waits for KV p90, by mode",
            Unit.SECONDS,
            "From decode's registration until its KV cache is whole: under push it contains what is left of prefill.",
            quantile(0.9, "tandem_phase_seconds", 'phase="kv_wait"', by="mode"),
            "{{mode}}",
        ),
        Panel(
            "Mean of each phase",
            Unit.SECONDS,
            "Until the first token. Once both legs are sent, prefill computes while decode registers and waits for KV.",
            (
                Query(
                    f"sort_desc({mean('tandem_phase_seconds', BEFORE_TOKENS, by='phase, mode')})", "{{phase}}, {{mode}}"
                ),
            ),
            kind=Kind.BARS,
            columns=24,
        ),
    ),
)
