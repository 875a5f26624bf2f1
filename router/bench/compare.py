"""Set-ups of this machine under the same load, in turn: push, pull, local, monolithic, push-whole (KV is pushed when
prefill is done, not before), and bare (push without a store, so without ledger and fleet, to see what these cost).

Each round starts every set-up anew, one at a time, so that none shares the processor or a warm cache with another; the
rounds are interleaved (A B A B), so that slow minutes of the machine hit all alike. Within a round all set-ups meet
the same schedule and the same prompts. Every set-up has as many engines with as many threads each; monolithic has
them all do whole requests.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.bench.measures import Spread, Summary, failures_text
from router.bench.workload import Measured, Subject, Workload
from router.cli import preflight
from router.cli.local_fleet import LocalFleet
from router.cli.setup import SetUp
from router.cli.terminal import LiveLine
from router.contract.errors import BadSettings
from router.contract.instance import Mode

SET_UPS = ("push", "pull", "local", "monolithic", "push-whole", "bare")


@dataclass(frozen=True, slots=True)
class Run:
    """One load of one set-up."""

    set_up: str
    round: int
    measured: Measured


def set_ups_of(names: str, base: SetUp) -> dict[str, SetUp]:
    """Return the set-ups that `names`, comma-separated, lists: `base`, varied by mode.

    Raises:
        BadSettings: a name is unknown or given twice.
    """
    wanted = names.split(",")
    if unknown := [name for name in wanted if name not in SET_UPS]:
        raise BadSettings(f"There is no set-up {unknown[0]!r}; choose out of {', '.join(SET_UPS)}.")
    if len(set(wanted)) < len(wanted):
        raise BadSettings(f"A set-up is listed twice in {names!r}; list each once.")
    threads = dataclasses.replace(base.engine, threads=base.threads_per_engine)
    whole = dataclasses.replace(base, engine=threads, prefill=0, decode=0, both=base.num_engines, mode=Mode.LOCAL)
    bare = dataclasses.replace(base, engine=threads, mode=Mode.PUSH, store="none")
    at_the_end = dataclasses.replace(base, engine=dataclasses.replace(threads, progressive=False), mode=Mode.PUSH)
    special = {"monolithic": whole, "bare": bare, "push-whole": at_the_end}
    return {
        name: special[name] if name in special else dataclasses.replace(base, engine=threads, mode=Mode(name))
        for name in wanted
    }


async def compare(
    set_ups: dict[str, SetUp], work: Workload, rates: Sequence[float], rounds: range, logs: Path
) -> list[Run]:
    """Return a Run for each round, set-up and rate, in the order they ran. `rounds` number the rounds and seed them.

    Odd rounds go through the set-ups backwards, so that none always follows the same other one on a warm machine.

    Raises:
        TandemError: a set-up cannot start, or one of its processes died.
    """
    line = LiveLine()
    runs = []
    for number in rounds:
        for name in list(set_ups)[:: -1 if number % 2 else 1]:
            set_up = set_ups[name]
            preflight.check(set_up)
            for measured in await _run_set_up(set_up, work, rates, number, logs / name, line):
                runs.append(Run(name, number, measured))
                line.say(f"round {number}  {name:<12}{_headline(measured)}")
    return runs


async def _run_set_up(
    set_up: SetUp, work: Workload, rates: Sequence[float], seed: int, logs: Path, line: LiveLine
) -> list[Measured]:
    fleet = LocalFleet(set_up, logs)

    async def load() -> list[Measured]:
        async with Subject(work, fleet.url, fleet.model) as subject:
            return [await subject.measure(rate, seed, line) for rate in rates]

    try:
        await fleet.start(lambda phase, fact: line.show(f"starting {logs.name}: {phase} {fact}"))
        return await fleet.children.guard(load())
    finally:
        await fleet.aclose()


def _headline(measured: Measured) -> str:
    figures = figures_of(measured.summary)
    shown = ("ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms")
    latencies = "  ".join(f"{name} {figures[name]:.1f}" for name in shown if name in figures)
    whole = f"{measured.summary.num_whole}/{measured.summary.num_requests} whole"
    failures = failures_text(measured.summary)
    return "  ".join(part for part in (f"{measured.rate_per_s:g} requests/s", whole, latencies, failures) if part)


def figures_of(summary: Summary) -> dict[str, float]:
    """Return the figures of `summary` that set-ups are compared by, under names with their units."""
    spreads: dict[str, Spread | None] = {
        "ttft": summary.ttft,
        "tpot": summary.tpot,
        "itl": summary.itl,
        "e2e": summary.e2e,
    }
    figures = {
        f"{name}_{field.name}": getattr(spread, field.name)
        for name, spread in spreads.items()
        if spread is not None
        for field in dataclasses.fields(spread)
        if field.name != "count"
    }
    rates = ("requests_per_s", "goodput_per_s", "output_tokens_per_s")
    figures |= {name: getattr(summary, name) for name in rates}
    return figures | {"whole_percent": 100 * summary.num_whole / summary.num_requests}


def medians(runs: Sequence[Run], rate_per_s: float) -> dict[str, dict[str, float]]:
    """Return, for each set-up, the median over rounds of each figure at that rate; a figure must be in every round."""
    result = {}
    for name in dict.fromkeys(run.set_up for run in runs):
        rounds = [
            figures_of(run.measured.summary)
            for run in runs
            if run.set_up == name and run.measured.rate_per_s == rate_per_s
        ]
        shared = [key for key in rounds[0] if all(key in figures for figures in rounds)]
        result[name] = {key: statistics.median(figures[key] for figures in rounds) for key in shared}
    return result


def ratios(of_set_ups: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return every set-up's figures divided by the first set-up's; figures that are 0 there are left out."""
    base = next(iter(of_set_ups.values()))
    return {
        name: {key: value / base[key] for key, value in figures.items() if base.get(key)}
        for name, figures in of_set_ups.items()
    }
