"""What `tandem bench router` has found, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from router.bench.ramp import Held
from router.bench.report import table
from router.bench.router_targets import Booked
from router.bench.soak import Soak


@dataclass(frozen=True, slots=True)
class Figure:
    """One set-up under one load."""

    target: str
    """`direct`, or the router's data path."""
    load: str
    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU of the router per request, or per chunk for streams; 0 for `direct`."""
    rss_mib: float
    failures: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured in one run."""

    figures: list[Figure]
    held: list[Held]
    soaked: list[Soak]
    booked: list[Booked]


def render(report: Report) -> str:
    """All of it as tables."""
    parts = [table(_rows(report.figures))]
    if report.held:
        head = ["target", "streams held", "late p99 ms", "of a core"]
        rows = [[one.target, str(one.streams), f"{one.late_ms:.1f}", f"{one.cpu_share:.2f}"] for one in report.held]
        parts.append(table([head, *rows]))
    for one in report.soaked:
        verdict = "flat" if one.flat else "GROWS"
        parts.append(
            f"{one.target}: {one.requests} requests, {one.failures} failures, {one.rss_mib[-1]:.0f} MiB,"
            f" {one.slope_mib_per_minute:+.3f} MiB/min over the second half: {verdict}"
        )
    parts += [
        f"{one.target}: {one.written} entries written into the ledger, {one.dropped} lost" for one in report.booked
    ]
    return "\n\n".join(parts)


def _rows(figures: list[Figure]) -> list[list[str]]:
    direct = {figure.load: figure for figure in figures if figure.target == "direct"}
    rows = [["target, load", "req/s", "added p50 us", "added p99 us", "CPU us", "RSS MiB", "failures"]]
    for figure in figures:
        base = direct[figure.load]
        unit = " a chunk" if "streams" in figure.load else ""
        rows.append(
            [
                f"{figure.target}, {figure.load}",
                f"{figure.requests_per_s:.0f}",
                f"{figure.p50_us - base.p50_us:.0f}",
                f"{figure.p99_us - base.p99_us:.0f}",
                f"{figure.cpu_us:.1f}{unit}" if figure.cpu_us else "",
                f"{figure.rss_mib:.0f}" if figure.rss_mib else "",
                str(figure.failures),
            ]
        )
    return rows
