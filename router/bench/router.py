"""`tandem bench router`: what the router itself costs, with everything on, before engines that cost nothing.

Load and mock engines share one core, the router has another; without a second core all share one and the figures say
so. Every figure is the median over rounds, and the rounds of all set-ups are interleaved, so that a disturbance of the
machine meets them alike. CPU time is that of the router's processes, from /proc.

Other routers run beside it, if they are installed:

  --peer 'sglang=sglang-router launch --pd-disaggregation --policy random --prefill {prefill} --decode {decode}
    --port {port}'
  --peer 'vllm=vllm-router --vllm-pd-disaggregation --policy random --prefill {prefill} --decode {decode}
    --port {port}'
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import uvloop

from router.bench.closed_loop import LoopResult, closed_loop, request_bytes
from router.bench.machine import describe_machine
from router.bench.report import table
from router.bench.router_targets import Target, mock_engines, peer, tandem_router
from router.contract.errors import TandemError
from router.settings import DATA_PATHS
from router.store.embedded import EmbeddedStore


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
    peers: tuple[tuple[str, str], ...] = ()
    """Name and command of other routers; the command names {prefill}, {decode} and {port}."""


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
        tuple(given.peer),
    )
    machine = describe_machine()
    if machine.is_busy:
        print("The machine is busy; figures will be noisy.", file=sys.stderr)
    try:
        figures = uvloop.run(measure(plan))
    except TandemError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(_rows(figures)))
    if given.json:
        result = {"machine": asdict(machine), "plan": asdict(plan), "figures": [asdict(figure) for figure in figures]}
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


async def measure(plan: Plan) -> list[Figure]:
    """The medians of all set-ups."""
    own, other = _cores()
    with _pinned_to(own), EmbeddedStore() as store:
        async with AsyncExitStack() as running:
            urls = await running.enter_async_context(mock_engines(store.url, own))
            targets = [Target("direct", int(urls["decode"].rpartition(":")[2]))]
            for data_path in plan.paths:
                targets.append(await running.enter_async_context(tandem_router(store.url, data_path, other)))
            for name, command in plan.peers:
                targets.append(await running.enter_async_context(peer(name, command, urls, other)))
            found: dict[tuple[str, str], list[Figure]] = {}
            for number in range(plan.rounds):
                _progress(number, plan.rounds)
                for target in targets:
                    for figure in await _measure_target(plan, target):
                        found.setdefault((figure.target, figure.load), []).append(figure)
            _progress(plan.rounds, plan.rounds)
    return [_median(figures) for figures in found.values()]


async def _measure_target(plan: Plan, target: Target) -> list[Figure]:
    figures = []
    for num_connections in plan.connections:
        request = request_bytes(stream=False, body_bytes=plan.body_bytes)
        before = target.cpu_s()
        result = await closed_loop(target.port, request, num_connections, plan.seconds)
        used = target.cpu_s() - before
        figures.append(_figure(target, f"c{num_connections}", result, used, len(result.latencies_s)))
    if plan.streams:
        request = request_bytes(stream=True, body_bytes=plan.body_bytes)
        before = target.cpu_s()
        result = await closed_loop(target.port, request, plan.streams, max(plan.seconds, 3.0))
        used = target.cpu_s() - before
        figures.append(_figure(target, f"{plan.streams} streams", result, used, result.chunks))
    return figures


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


@contextmanager
def _pinned_to(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cores() -> tuple[int, int]:
    """A core for load and engines, and one for the router; the same when there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def _progress(number: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rround {number} of {total}", end="\n" if number == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
