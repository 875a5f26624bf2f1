"""Set-ups of this machine under the same load, in turn: push, local, monolithic, push-whole (KV is pushed when prefill
is done, not before), pull (copies are posted between decode's steps, as connectors inside an engine do it),
pull-offloop (as Tandem does it), and bare (push without a store, so without ledger and fleet, to see what these cost).

Each round starts every set-up anew, one at a time, so that none shares the processor or a warm cache with another; the
rounds are interleaved (A B A B), so that slow minutes of the machine hit all alike. Within a round all set-ups meet
the same schedule and the same prompts. Every set-up has as many engines with as many threads each; monolithic has
them all do whole requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.bench.measures import Spread, Summary, failures_text
from router.bench.stories import Story, hand_over_ms, in_order, read_stories
from router.bench.workload import Measured, Subject, Workload
from router.cli import preflight
from router.cli.local_fleet import LocalFleet
from router.cli.setup import SetUp
from router.cli.terminal import LiveLine
from router.contract.errors import BadSettings
from router.contract.instance import Mode

LEDGER_WITHIN_S = 0.5
"""After a load, its last lines are in the ledger."""
SET_UPS = ("push", "pull", "pull-offloop", "local", "monolithic", "push-whole", "bare")


@dataclass(frozen=True, slots=True)
class Run:
    """One load of one set-up."""

    set_up: str
    round: int
    measured: Measured
    stories: tuple[Story, ...] = ()
    """What the ledger tells of the measured requests, oldest first; empty without a store."""

    @property
    def hand_overs_ms(self) -> list[float]:
        """How long decode waited for KV that was computed."""
        return [found for story in self.stories if (found := hand_over_ms(story)) is not None]


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
    off_loop = dataclasses.replace(base, engine=threads, mode=Mode.PULL)
    on_loop = dataclasses.replace(off_loop, engine=dataclasses.replace(threads, post_between_steps=True))
    special = {"monolithic": whole, "bare": bare, "push-whole": at_the_end, "pull": on_loop, "pull-offloop": off_loop}
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
            for measured, stories in await _run_set_up(set_up, work, rates, number, logs / name, line):
                runs.append(Run(name, number, measured, stories))
                line.say(f"round {number}  {name:<12}{_headline(measured)}")
    return runs


async def _run_set_up(
    set_up: SetUp, work: Workload, rates: Sequence[float], seed: int, logs: Path, line: LiveLine
) -> list[tuple[Measured, tuple[Story, ...]]]:
    fleet = LocalFleet(set_up, logs)
    told: set[str] = set()

    async def stories() -> tuple[Story, ...]:
        """Of the last load, without its warm-up."""
        if not fleet.store_url:
            return ()
        found = await read_stories(fleet.store_url, set_up.namespace)
        fresh = in_order(story for key, story in found.items() if key not in told)
        told.update(found)
        return tuple(fresh[work.warmup :])

    async def load() -> list[tuple[Measured, tuple[Story, ...]]]:
        async with Subject(work, fleet.url, fleet.model) as subject:
            await asyncio.sleep(LEDGER_WITHIN_S)
            await stories()  # What it took to learn the vocabulary is told apart from the loads.
            loads = []
            for rate in rates:
                measured = await subject.measure(rate, seed, line)
                await asyncio.sleep(LEDGER_WITHIN_S)
                loads.append((measured, await stories()))
            return loads

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


def hand_over_figures(hand_overs_ms: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 of these, under names with their units; nothing of nothing."""
    if not hand_overs_ms:
        return {}
    ordered = sorted(hand_overs_ms)
    return {f"hand_over_p{share}_ms": ordered[min(len(ordered) * share // 100, len(ordered) - 1)] for share in (50, 99)}


def medians(runs: Sequence[Run], rate_per_s: float) -> dict[str, dict[str, float]]:
    """Return, for each set-up, the median over rounds of each figure at that rate; a figure must be in every round."""
    result = {}
    for name in dict.fromkeys(run.set_up for run in runs):
        rounds = [
            figures_of(run.measured.summary) | hand_over_figures(run.hand_overs_ms)
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
