"""What a chaos run has shown, as tables."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.chaos_hurts import Inflicted
from tests.support.chaos_load import BAD, Result, Verdict


@dataclass
class ChaosReport:
    """Everything that a run has brought."""

    results: list[Result]
    inflicted: list[Inflicted]
    seconds: float
    longest_gap_s: float = 0.0
    """The longest time under load in which no answer was served."""
    held: dict[str, float] = field(default_factory=dict)
    """What was still held at the end."""
    quiet_after_s: float = 0.0
    pairs: set[tuple[str, str, str]] = field(default_factory=set)
    """(prefill, decode, router) that served a request after the last hurt."""
    restarts: int = 0
    """Starts that found no store and were made again."""
    problems: list[str] = field(default_factory=list)
    """Processes that ended by themselves, pairs that did not serve, and the like."""

    @property
    def bad(self) -> list[Result]:
        return [result for result in self.results if result.verdict in BAD]

    @property
    def num_served(self) -> int:
        return sum(result.verdict is Verdict.SERVED for result in self.results)

    @property
    def is_good(self) -> bool:
        return not (self.bad or self.held or self.problems)

    def text(self) -> str:
        """The tables."""
        parts = [self._head(), self._verdicts(), self._hurts(), self._recovery()]
        parts += [
            f"{bad.verdict}: {bad.request_id} by {bad.router}, stream={bad.stream}: {bad.why}" for bad in self.bad
        ]
        parts += [f"HELD: {what} = {value:g}" for what, value in self.held.items()]
        parts += [f"PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(parts)

    def _head(self) -> str:
        tried = [result for result in self.results if result.verdict is not Verdict.UNREACHABLE]
        held = "something still" if self.held else "nothing"
        return (
            f"{len(tried)} requests in {self.seconds:.0f} s, {len(self.inflicted)} hurts; {held} held "
            f"{self.quiet_after_s:.1f} s after the last request; {len(self.pairs)} of 8 pairs and routers serve; "
            f"{self.restarts} starts found no store and were made again; "
            f"at most {self.longest_gap_s:.1f} s passed between two served answers."
        )

    def _verdicts(self) -> str:
        rows = []
        for verdict in Verdict:
            these = [result for result in self.results if result.verdict is verdict]
            took = [result.ended_at - result.sent_at for result in these]
            codes = Counter(result.why for result in these if verdict in (Verdict.REFUSED, Verdict.BROKEN_OFF))
            told = ", ".join(f"{code} {count}" for code, count in codes.most_common())
            rows.append((verdict.value, str(len(these)), _s(took, 50), _s(took, 99), told))
        return _table(("verdict", "requests", "p50", "p99", "codes"), rows)

    def _hurts(self) -> str:
        by: dict[tuple[str, str], list[Inflicted]] = defaultdict(list)
        for one in self.inflicted:
            by[one.hurt.kind.value, one.hurt.role].append(one)
        rows = []
        for (kind, role), these in sorted(by.items()):
            phases = Counter(f"{one.hurt.phase}" for one in these if one.reached)
            missed = sum(not one.reached for one in these)
            told = ", ".join(f"{phase} {count}" for phase, count in sorted(phases.items()))
            well = [one.well_after_s for one in these if not math.isnan(one.well_after_s)]
            rows.append(
                (
                    kind,
                    role,
                    str(len(these)),
                    told + (f", missed {missed}" if missed else ""),
                    _s(well, 50),
                    _s(well, 100),
                )
            )
        return _table(("hurt", "role", "times", "phases", "well again p50", "max"), rows)

    def _recovery(self) -> str:
        errors = [
            result for result in self.results if result.verdict in (Verdict.REFUSED, Verdict.BROKEN_OFF, Verdict.CUT)
        ]
        took = [result.ended_at - result.sent_at for result in errors]
        return f"Time to an error: p50 {_s(took, 50)}, p99 {_s(took, 99)}, longest {_s(took, 100)}.\n"


def longest_gap_s(results: Iterable[Result]) -> float:
    """The longest time between two served answers."""
    ends = sorted(result.ended_at for result in results if result.verdict is Verdict.SERVED)
    return max((later - earlier for earlier, later in pairwise(ends)), default=0.0)


def write_facts(report: ChaosReport, path: Path) -> None:
    """Every hurt and every request that was not served, one JSON line each, by the time at which it ended."""
    facts: list[tuple[float, dict[str, object]]] = []
    for one in report.inflicted:
        hurt = {"hurt": one.hurt.kind, "phase": one.hurt.phase, "victim": one.victim, "reached": one.reached}
        facts.append((one.at, hurt | {"unix_at": one.unix_at, "well_after_s": one.well_after_s}))
    for result in report.results:
        if result.verdict not in (Verdict.SERVED, Verdict.UNREACHABLE):
            told = {"verdict": result.verdict, "why": result.why, "id": result.request_id, "router": result.router}
            facts.append((result.ended_at, told | {"took_s": result.ended_at - result.sent_at}))
    path.write_text("".join(json.dumps({"at": at} | fact) + "\n" for at, fact in sorted(facts, key=lambda one: one[0])))


def _s(values: Iterable[float], percent: float) -> str:
    ordered = sorted(values)
    if not ordered:
        return "-"
    return f"{ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]:.2f} s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    return "\n".join(lines) + "\n"


def placements(log_paths: Iterable[Path]) -> dict[str, dict[str, object]]:
    """The access logs' records by the client's own request id, each with its router's name."""
    records: dict[str, dict[str, object]] = {}
    for path in log_paths:
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith('{"at"'):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                records[record["client_id"]] = record | {"router": path.stem}
    return records
