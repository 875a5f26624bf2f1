"""Results as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from router.bench.compare import ratios
from router.bench.measures import Spread, Summary, failures_text


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return `rows` as aligned columns, the first row underlined; the first column to the left, others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join((first, *others)).rstrip()

    return "\n".join((line(rows[0]), "  ".join("-" * width for width in widths), *map(line, rows[1:])))


def latency_rows(summary: Summary) -> list[list[str]]:
    """Return head and rows of the latencies of one load, in milliseconds."""
    spreads: dict[str, Spread | None] = {
        "TTFT": summary.ttft,
        "TPOT": summary.tpot,
        "ITL": summary.itl,
        "E2E": summary.e2e,
    }
    rows = [["ms", "mean", "p50", "p90", "p99", "max", "values"]]
    for name, found in spreads.items():
        if found is not None:
            shown = (found.mean_ms, found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms)
            rows.append([name, *(f"{value:.1f}" for value in shown), str(found.count)])
    return rows


def describe(summary: Summary) -> str:
    """Return one load's figures: counts, rates, latencies, failures."""
    lines = [
        f"{summary.num_whole} of {summary.num_requests} requests answered whole in {summary.duration_s:.2f} s"
        f" ({summary.num_late} sent late)",
        f"{summary.requests_per_s:.2f} requests/s, goodput {summary.goodput_per_s:.2f}/s,"
        f" {summary.output_tokens_per_s:.1f} output tokens/s",
        f"tokens a request: {summary.prompt_tokens_mean:.1f} in, {summary.output_tokens_mean:.1f} out (means)",
        "",
        table(latency_rows(summary)),
    ]
    if summary.failures:
        lines += ["", failures_text(summary)]
    return "\n".join(lines)


_COMPARED = {
    "TTFT p50 ms": "ttft_p50_ms",
    "TTFT p90 ms": "ttft_p90_ms",
    "TTFT p99 ms": "ttft_p99_ms",
    "TPOT p50 ms": "tpot_p50_ms",
    "TPOT p90 ms": "tpot_p90_ms",
    "TPOT p99 ms": "tpot_p99_ms",
    "ITL p99 ms": "itl_p99_ms",
    "hand-over p50 ms": "hand_over_p50_ms",
    "hand-over p99 ms": "hand_over_p99_ms",
    "E2E p50 ms": "e2e_p50_ms",
    "E2E p99 ms": "e2e_p99_ms",
    "output tokens/s": "output_tokens_per_s",
    "goodput/s": "goodput_per_s",
    "answered whole %": "whole_percent",
}


def comparison_tables(medians: dict[str, dict[str, float]], rate_per_s: float, rounds: int) -> str:
    """Return figures and ratios of all set-ups at one rate; the ratios are to the first set-up."""
    first = next(iter(medians))
    return (
        f"Medians over {rounds} rounds at {rate_per_s:g} requests/s\n{_columns(medians, '.1f')}\n\n"
        f"Divided by {first}\n{_columns(ratios(medians), '.2f')}\n"
    )


def _columns(of_set_ups: dict[str, dict[str, float]], form: str) -> str:
    rows = [["", *of_set_ups]]
    for title, key in _COMPARED.items():
        if any(key in figures for figures in of_set_ups.values()):
            rows.append([title, *(_cell(figures.get(key), form) for figures in of_set_ups.values())])
    return table(rows)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
