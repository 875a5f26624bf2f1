"""Findings and Stories as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine_shim.core.seat_ticket import SeatState
from engine_shim.simulation.ablations import SAFEGUARDS
from engine_shim.simulation.campaign import Findings
from engine_shim.simulation.story import Invariant
from engine_shim.simulation.world import Verdict
from router.contract.instance import Mode
from router.contract.rendezvous import JOIN
from router.core.lifecycle import NODES, Edge

_FAULTS, _OUTCOMES = "fault ", "outcome "


def summary_table(findings: Findings, took_s: float) -> str:
    """Requests, outcomes, faults, and which promises were watched, as a table."""
    broken = [verdict.violations[0].invariant for verdict in findings.bad]
    pace = f"{1000 * took_s / max(findings.seeds, 1):.1f} ms each"
    rows = [
        ("seeds", str(findings.seeds), f"{took_s:.1f} s, {pace}"),
        ("requests", str(findings.requests), _listed(findings, _OUTCOMES)),
        ("faults", str(_sum(findings, _FAULTS)), _listed(findings, _FAULTS)),
        ("retries", str(findings.counts["retries"]), f"{findings.counts['reaped']} tickets reaped"),
    ]
    rows += [(invariant.value, str(broken.count(invariant)), "seeds broke it first") for invariant in Invariant]
    return _columns(rows)


def coverage_table(findings: Findings) -> str:
    """How often each row of JOIN, of decode's seats and of the Lifecycle was visited; rows never visited first."""
    visits = {row: findings.counts[row] for row in rows_of_tables()}
    visits |= {row: n for row, n in findings.counts.items() if row.startswith(("JOIN ", "SEATS ", "LIFE "))}
    ordered = sorted(visits.items(), key=lambda row: (row[1] > 0, row[0]))
    return _columns([(row, str(num_visits), "") for row, num_visits in ordered])


def rows_of_tables() -> Iterator[str]:
    """Every row that JOIN, the SeatDesk and the Lifecycle (of both modes that have two legs) have."""
    for state, arrival in JOIN:
        yield f"JOIN {state} {arrival}"
    for seat_state, event in _SEAT_ROWS:
        yield f"SEATS {seat_state} {event}"
    for stand, node in NODES.items():
        if stand.mode is not Mode.LOCAL:
            yield from (f"LIFE ({stand}) {edge.name}" for edge in Edge if node.steps[edge] is not None)


_S = SeatState
_SEAT_ROWS = (
    *((_S.QUEUED, event) for event in ("Seated", "Left", "Stopped")),
    *((_S.TELLING, event) for event in ("Acknowledged", "Stopped", "Left")),
    *((_S.WAITING, event) for event in ("Acknowledged", "Tag", "Granted", "Stopped", "Left")),
    *((_S.READING, event) for event in ("ReadEnded", "Granted", "Left")),
    *((_S.LEAVING, event) for event in ("Seated", "Tag", "Granted", "ReadEnded", "Stopped", "Left")),
    *((_S.SETTLING, event) for event in ("Tag", "Stopped", "Left")),
    *((_S.CLOSED, event) for event in ("Seated", "Tag", "Granted", "Stopped", "Left")),
)


def story_text(verdict: Verdict) -> str:
    """The Story of this seed, or of the first request that was wronged in it, with what was broken on top."""
    broken = [f"seed {verdict.seed}: {v.invariant}: {v.request} {v.what}" for v in verdict.violations]
    return "\n".join([*(broken or [f"seed {verdict.seed}: all promises kept"]), "", *map(str, verdict.story)])


def list_safeguards() -> str:
    """Every safeguard, the promise that breaks without it, and what it does."""
    return _columns([(one.name, one.breaks.value, one.says) for one in SAFEGUARDS.values()], right=False)


def _sum(findings: Findings, prefix: str) -> int:
    return sum(num for name, num in findings.counts.items() if name.startswith(prefix))


def _listed(findings: Findings, prefix: str) -> str:
    named = sorted((name.removeprefix(prefix), num) for name, num in findings.counts.items() if name.startswith(prefix))
    return ", ".join(f"{num} {name}" for name, num in named)


def _columns(rows: Sequence[tuple[str, str, str]], *, right: bool = True) -> str:
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(
        f"{one:<{first}}  {two.rjust(second) if right else two.ljust(second)}  {three}".rstrip()
        for one, two, three in rows
    )
