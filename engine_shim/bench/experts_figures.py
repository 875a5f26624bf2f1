"""What the GPU benchmark of experts has measured, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured case, of the slowest rank; microseconds a step.

    Percentiles are over graphs, each of which is a mean over its steps: the tail of single steps is longer.
    """

    what: str
    tokens: int
    routing: str
    p50_us: float
    p90_us: float
    p99_us: float
    dispatch_us: float | None = None
    combine_us: float | None = None
    """Medians of the halves in a graph with events between them."""
    eager_us: float | None = None
    """Median without a graph, each step launched by the host."""
    wire_bytes: int = 0
    floor_fraction: float = 0.0
    num_sms: int = 0
    buffer_bytes: int = 0


def percentiles(times: list[float]) -> tuple[float, float, float]:
    """p50, p90, p99."""
    ordered = sorted(times)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.9, 0.99)]
    return at[0], at[1], at[2]


def print_figures(figures: list[Figure]) -> None:
    """A line for each."""
    for f in figures:
        halves = (
            f"  dispatch {f.dispatch_us:6.1f} combine {f.combine_us:6.1f} eager {f.eager_us:6.1f}"
            if f.dispatch_us and f.combine_us and f.eager_us
            else ""
        )
        print(
            f"{f.what:20} T={f.tokens:<5} {f.routing:8} p50 {f.p50_us:7.1f} p90 {f.p90_us:7.1f} p99 {f.p99_us:7.1f} us"
            f"{halves}  wire {f.wire_bytes / 1e6:6.2f} MB  floor {f.floor_fraction:4.0%}  SMs {f.num_sms}",
            flush=True,
        )
