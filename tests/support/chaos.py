"""Chaos with real processes: load on a whole set-up whose processes are killed, frozen and cut off.

`python -m tests.support.chaos --requests 10000` prints what became of every request; status 1 when one hung or was
wrong, when something is held at the end, or when a pair does not serve any more.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.chaos_bench import RATE_PER_S, bench_serve
from tests.support.chaos_hurts import Tormentor
from tests.support.chaos_load import ChaosLoad, Verdict, cases
from tests.support.chaos_report import ChaosReport, longest_gap_s, placements, write_facts
from tests.support.chaos_site import ChaosSite

QUIET_WITHIN_S = 30.0
FRESH_REQUESTS = 200
"""So many are sent at the end until every pair has served through every router."""


@dataclass(frozen=True)
class ChaosPlan:
    """How long, how hard."""

    requests: int = 400
    seed: int = 1
    clients: int = 12
    per_s: float = 12.0
    every_s: float = 3.0
    """Between two hurts, on average."""
    watched: bool = False
    """The store is a primary and a replica behind a sentinel, and fails over."""


async def run_chaos(plan: ChaosPlan, folder: Path) -> ChaosReport:
    """The run is over and nothing of it runs any more."""
    made = cases()
    async with ChaosSite(folder, watched=plan.watched) as site:
        load = ChaosLoad(site.routers, made, plan.seed)
        tormentor = Tormentor(site, load, plan.seed)
        report = ChaosReport(load.results, tormentor.inflicted, 0.0)
        began_at = time.monotonic()
        tormenting = asyncio.create_task(tormentor.run(plan.every_s))
        loading = asyncio.create_task(load.run(plan.requests, plan.clients, plan.per_s))
        beside = round(RATE_PER_S * plan.requests / plan.per_s)
        benching = asyncio.create_task(bench_serve(site.routers[0].url, beside, folder))
        await asyncio.wait({tormenting, loading}, return_when=asyncio.FIRST_COMPLETED)
        tormenting.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await tormenting
            await tormentor.heal()
            await loading
            report.problems += await benching
        except AssertionError as error:
            loading.cancel()
            benching.cancel()
            report.problems.append(str(error))
        report.restarts, report.longest_gap_s = site.restarts, longest_gap_s(load.results)
        report.seconds = time.monotonic() - began_at
        report.held, report.quiet_after_s = await site.wait_quiet(QUIET_WITHIN_S)
        if not report.problems:
            await _serve_through_all(site, load, report)
        load.close()
    write_facts(report, folder / "facts.jsonl")
    return report


async def _serve_through_all(site: ChaosSite, load: ChaosLoad, report: ChaosReport) -> None:
    """Fresh requests have been served by every pair through every router, or the report says by which not."""
    wanted = {
        (prefill.name, decode.name, router.name)
        for prefill in site.of_role("prefill")
        for decode in site.of_role("decode")
        for router in site.routers
    }
    for _ in range(0, FRESH_REQUESTS, 4):
        fresh = await asyncio.gather(*(load.send(router, leaving=0.0) for router in site.routers * 2))
        report.problems += [
            f"a fresh request was {one.verdict}: {one.why}" for one in fresh if one.verdict is not Verdict.SERVED
        ]
        await asyncio.sleep(0.15)  # the access log is written every tenth of a second
        records = placements(router.log_path for router in site.routers)
        served = (records[one.request_id] for one in fresh if one.request_id in records)
        report.pairs |= {(str(one["prefill"]), str(one["decode"]), str(one["router"])) for one in served}
        if report.problems or report.pairs >= wanted:
            break
    if not report.problems:
        report.problems += [f"no fresh request went {' -> '.join(one)}" for one in sorted(wanted - report.pairs)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.chaos", description=__doc__.splitlines()[0])
    plan = ChaosPlan()
    parser.add_argument("--requests", type=int, default=plan.requests)
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--clients", type=int, default=plan.clients, help="requests in flight at most")
    parser.add_argument("--per-s", type=float, default=plan.per_s, help="requests per second at most")
    parser.add_argument("--every-s", type=float, default=plan.every_s, help="seconds between two hurts, on average")
    parser.add_argument("--watched", action="store_true", help="a store behind a sentinel, which fails over")
    parser.add_argument("--folder", type=Path, help="where logs are kept; without it, a new one")
    options = vars(parser.parse_args())
    folder = options.pop("folder") or Path(tempfile.mkdtemp(prefix="tandem-chaos-"))
    report = asyncio.run(run_chaos(ChaosPlan(**options), folder))
    print(report.text())
    print(f"Logs in {folder}/logs, every hurt and error in {folder}/facts.jsonl.")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
