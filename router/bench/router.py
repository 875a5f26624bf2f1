"""`tandem bench router`: what the router itself costs, with everything on, before engines that cost nothing.

Load, mock engines and store share one core, where the store gets what the others leave; the router has another.
Without a second core all share one and the figures say so. Every figure is the median over rounds, and the rounds of
all set-ups are interleaved, so that a disturbance of the machine meets them alike. CPU time is that of the router's
processes, from /proc.

`cN` is a closed loop over N kept-alive connections: at c1, p50 and p99 are what the router adds at low load. The ramp
says how many streams at `--tokens-per-s` each a target holds before tokens come late; `--workers` runs Tandem with so
many workers on all cores but the load's; `--soak-s` watches its memory under load for so long.

nginx as a plain reverse proxy to the decode engine (one leg instead of two) is the floor: `--nginx nginx`. Other
routers run beside it, if they are installed:

  --peer 'sglang=sglang-router launch --pd-disaggregation --policy random --prefill {prefill} --decode {decode}
    --port {port}'
  --peer 'vllm=vllm-router --vllm-pd-disaggregation --policy random --prefill {prefill} --decode {decode}
    --port {port}'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import uvloop

from router.bench.closed_loop import LoopResult, closed_loop, request_bytes
from router.bench.machine import describe_machine
from router.bench.ramp import hold
from router.bench.router_report import Figure, Report, render
from router.bench.router_targets import Target, mock_engines, nginx, peer, tandem_router
from router.bench.soak import soak
from router.contract.errors import TandemError
from router.settings import DATA_PATHS
from router.store.embedded import EmbeddedStore

SETTLE_S, SETTLED_S = 5.0, 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    paths: tuple[str, ...]
    connections: tuple[int, ...]
    streams: int
    """Paced streams at a time; 0 measures none."""
    seconds: float
    rounds: int
    body_bytes: int
    tokens_per_s: float = 20.0
    """Of each stream."""
    most_streams: int = 0
    """The ramp ends there; 0: no ramp."""
    soak_s: float = 0.0
    workers: tuple[int, ...] = ()
    """Beside the router of one process, routers of so many workers."""
    nginx: str = ""
    """The program; empty: without it."""
    peers: tuple[tuple[str, str], ...] = ()
    """Name and command of other routers; the command names {prefill}, {decode} and {port}."""


@dataclass(frozen=True, slots=True)
class Cores:
    """A core for load and engines, and one for each router; the same when there is only one."""

    load: int
    router: int
    free: frozenset[int]
    """All but the load's, for routers of several workers."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write --json; returns the exit status."""
    given = _parser().parse_args(argv)
    plan = Plan(
        tuple(given.paths.split(",")),
        tuple(int(number) for number in given.connections.split(",")),
        given.streams,
        given.seconds,
        given.rounds,
        given.body_bytes,
        given.tokens_per_s,
        given.ramp,
        given.soak_s,
        tuple(int(number) for number in given.workers.split(",") if number),
        given.nginx,
        tuple(given.peer),
    )
    machine = describe_machine()
    if machine.is_busy:
        print("The machine is busy; figures will be noisy.", file=sys.stderr)
    try:
        report = uvloop.run(measure(plan))
    except TandemError as error:
        print(error, file=sys.stderr)
        return 2
    print(render(report))
    if given.json:
        result = {"machine": asdict(machine), "plan": asdict(plan), **asdict(report)}
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem bench router", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", default=",".join(DATA_PATHS), help="(default: %(default)s)")
    parser.add_argument("--connections", default="1,32,256", help="kept-alive connections (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=128, help="paced streams at a time (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: %(default)s)")
    parser.add_argument("--tokens-per-s", type=float, default=20.0, help="of each stream (default: %(default)s)")
    parser.add_argument(
        "--ramp", type=int, default=0, metavar="STREAMS", help="find how many streams are held, up to so many"
    )
    parser.add_argument("--soak-s", type=float, default=0.0, help="seconds of load under which memory is watched")
    parser.add_argument("--workers", default="", help="also measure Tandem with so many workers, such as 2,4")
    parser.add_argument("--nginx", default="", metavar="PROGRAM", help="nginx, the floor (default: without it)")
    parser.add_argument("--body-bytes", type=int, default=1024, help="of each request (default: %(default)s)")
    parser.add_argument(
        "--peer", action="append", default=[], type=_peer, metavar="NAME=COMMAND", help="another router, see above"
    )
    parser.add_argument("--json", metavar="OUT", help="write all figures to this file")
    return parser


def _peer(text: str) -> tuple[str, str]:
    name, separator, command = text.partition("=")
    if not separator or not name or not all(word in command for word in ("{prefill}", "{decode}", "{port}")):
        raise argparse.ArgumentTypeError("give NAME=COMMAND, with {prefill}, {decode} and {port} in the command")
    return name, command


async def measure(plan: Plan) -> Report:
    """The medians of all set-ups, then the ramp and the soak."""
    cores = _cores()
    own = cores.load
    with _pinned_to(own), EmbeddedStore() as store:
        # The store stands on another machine in earnest: it must not hold up load and engines here, nor be starved by
        # them, which would spare the router the work of telling it.
        os.setpriority(os.PRIO_PROCESS, store.pid, 5)
        async with AsyncExitStack() as running:
            gap = ("--gap-s", str(1 / plan.tokens_per_s))
            urls = await running.enter_async_context(mock_engines(store.url, own, *gap))
            targets = [Target("direct", int(urls["decode"].rpartition(":")[2]))]
            for starting in _starts(plan, cores, store.url, urls):
                targets.append(await running.enter_async_context(starting))
            found: dict[tuple[str, str], list[Figure]] = {}
            for number in range(plan.rounds):
                _progress(number, plan.rounds)
                for target in targets:
                    for figure in await _measure_target(plan, target):
                        found.setdefault((figure.target, figure.load), []).append(figure)
            _progress(plan.rounds, plan.rounds)
            held = []
            if plan.most_streams:
                held = [
                    await hold(one, plan.tokens_per_s, max(plan.seconds, 3.0), plan.most_streams) for one in targets
                ]
            ours = [target for target in targets if target.name in plan.paths]
            soaked = [await soak(target, 32, plan.soak_s) for target in ours] if plan.soak_s else []
            for target in ours:
                await _settle(target)
            booked = [await target.ledger() for target in ours]
    return Report([_median(figures) for figures in found.values()], held, soaked, booked)


def _starts(
    plan: Plan, cores: Cores, store: str, urls: dict[str, str]
) -> Iterator[AbstractAsyncContextManager[Target]]:
    """The targets beside the engines themselves, each of which starts when it is entered."""
    if plan.nginx:
        yield nginx(plan.nginx, urls, cores.router)
    for data_path in plan.paths:
        yield tandem_router(store, data_path, {cores.router})
    for number in plan.workers:
        name = f"{number} workers, {len(cores.free)} cores"
        yield tandem_router(store, plan.paths[0], set(cores.free), number, name)
    for name, command in plan.peers:
        yield peer(name, command, urls, cores.router)


async def _measure_target(plan: Plan, target: Target) -> list[Figure]:
    figures = []
    for num_connections in plan.connections:
        await _settle(target)
        request = request_bytes(stream=False, body_bytes=plan.body_bytes)
        before = target.cpu_s()
        result = await closed_loop(target.port, request, num_connections, plan.seconds)
        used = target.cpu_s() - before
        figures.append(_figure(target, f"c{num_connections}", result, used, len(result.latencies_s)))
    if plan.streams:
        await _settle(target)
        request = request_bytes(stream=True, body_bytes=plan.body_bytes)
        before = target.cpu_s()
        result = await closed_loop(target.port, request, plan.streams, max(plan.seconds, 3.0))
        used = target.cpu_s() - before
        figures.append(_figure(target, f"{plan.streams} streams", result, used, result.chunks))
    return figures


async def _settle(target: Target) -> None:
    """What the requests that the last load has left have cost is over, or SETTLE_S have passed: no part of the next."""
    for _ in range(int(SETTLE_S / SETTLED_S)):
        before = target.cpu_s()
        await asyncio.sleep(SETTLED_S)
        if target.cpu_s() - before < SETTLED_S / 10:
            return


def _figure(target: Target, load: str, result: LoopResult, cpu_s: float, num_units: int) -> Figure:
    return Figure(
        target.name,
        load,
        result.requests_per_s,
        result.percentile_us(50),
        result.percentile_us(99),
        cpu_s / num_units * 1e6 if target.pid and num_units else 0.0,
        target.rss_mib(),
        result.failures,
    )


def _median(figures: list[Figure]) -> Figure:
    first = figures[0]
    numbers = ("requests_per_s", "p50_us", "p99_us", "cpu_us", "rss_mib")
    medians = {name: median(getattr(figure, name) for figure in figures) for name in numbers}
    return Figure(first.target, first.load, failures=sum(figure.failures for figure in figures), **medians)


@contextmanager
def _pinned_to(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cores() -> Cores:
    cores = sorted(os.sched_getaffinity(0))
    return Cores(cores[0], cores[-1], frozenset(cores[1:] or cores))


def _progress(number: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rround {number} of {total}", end="\n" if number == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
