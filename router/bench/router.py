"""`tandem bench router`: what the router itself costs, with everything on, before engines that cost nothing.

Load and mock engines share one core, the router has another; without a second core all share one and the figures say
so. Every figure is the median over rounds, and the rounds of all set-ups are interleaved, so that a disturbance of the
machine meets them alike. CPU time is that of the router's process, from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import httpx
import uvloop

from router.bench.closed_loop import LoopResult, closed_loop, request_bytes
from router.bench.machine import describe_machine
from router.bench.report import table
from router.contract.errors import EngineDown, RouterError
from router.settings import DATA_PATHS
from router.store.embedded import EmbeddedStore, end_with_parent

NAMESPACE = "bench"
READY_WITHIN_S = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


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
    """Router CPU per request, or per chunk for streams; 0 for `direct`."""
    rss_mib: float
    failures: int


@dataclass(frozen=True, slots=True)
class Target:
    """Somebody to load: a port, and the process whose CPU counts (0: none)."""

    name: str
    port: int
    pid: int = 0


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
    )
    machine = describe_machine()
    if machine.is_busy:
        print("The machine is busy; figures will be noisy.", file=sys.stderr)
    figures = uvloop.run(measure(plan))
    print(table(_rows(figures)))
    if given.json:
        result = {"machine": asdict(machine), "plan": asdict(plan), "figures": [asdict(figure) for figure in figures]}
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tandem bench router", description=__doc__)
    parser.add_argument("--paths", default=",".join(DATA_PATHS), help="(default: %(default)s)")
    parser.add_argument("--connections", default="1,32,256", help="kept-alive connections (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=128, help="paced streams at a time (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: %(default)s)")
    parser.add_argument("--body-bytes", type=int, default=1024, help="of each request (default: %(default)s)")
    parser.add_argument("--json", metavar="OUT", help="write all figures to this file")
    return parser


async def measure(plan: Plan) -> list[Figure]:
    """The medians of all set-ups."""
    own, other = _cores()
    os.sched_setaffinity(0, {own})
    with EmbeddedStore() as store:
        async with _mock_engines(store.url, own) as urls, _routers(plan, store.url, other) as routers:
            direct = Target("direct", int(urls["decode"].rpartition(":")[2]))
            found: dict[tuple[str, str], list[Figure]] = {}
            for number in range(plan.rounds):
                _progress(number, plan.rounds)
                for target in (direct, *routers):
                    for figure in await _measure_target(plan, target):
                        found.setdefault((figure.target, figure.load), []).append(figure)
            _progress(plan.rounds, plan.rounds)
    return [_median(figures) for figures in found.values()]


async def _measure_target(plan: Plan, target: Target) -> list[Figure]:
    figures = []
    for num_connections in plan.connections:
        request = request_bytes(stream=False, body_bytes=plan.body_bytes)
        before = _cpu_s(target.pid)
        result = await closed_loop(target.port, request, num_connections, plan.seconds)
        used = _cpu_s(target.pid) - before
        figures.append(_figure(target, f"c{num_connections}", result, used, len(result.latencies_s)))
    if plan.streams:
        request = request_bytes(stream=True, body_bytes=plan.body_bytes)
        before = _cpu_s(target.pid)
        result = await closed_loop(target.port, request, plan.streams, max(plan.seconds, 3.0))
        used = _cpu_s(target.pid) - before
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
        _rss_mib(target.pid),
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


# Processes.


@asynccontextmanager
async def _mock_engines(store: str, core: int) -> AsyncIterator[dict[str, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router.bench.mock_engines",
        *("--store", store, "--namespace", NAMESPACE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent(os.getpid()),
    )
    assert process.stdin is not None and process.stdout is not None
    os.sched_setaffinity(process.pid, {core})
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_WITHIN_S)
        if not line:
            raise EngineDown("The mock engines did not start; their message stands above.")
        yield json.loads(line)
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def _routers(plan: Plan, store: str, core: int) -> AsyncIterator[list[Target]]:
    processes: list[asyncio.subprocess.Process] = []
    try:
        targets = []
        for data_path in plan.paths:
            process = await _start_router(store, data_path)
            processes.append(process)
            os.sched_setaffinity(process.pid, {core})
            targets.append(Target(data_path, await _port_of(process), process.pid))
        yield targets
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        for process in processes:
            await process.wait()


async def _start_router(store: str, data_path: str) -> asyncio.subprocess.Process:
    """A router with everything on; its request log is written, but to nowhere."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router",
        *("--port", "0", "--store", store, "--namespace", NAMESPACE, "--data-path", data_path),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent(os.getpid()),
    )


async def _port_of(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(READY_WITHIN_S):
        while line := (await process.stderr.readline()).decode():
            if "listening on" in line:
                port = int(line.partition("listening on ")[2].partition(",")[0].rpartition(":")[2])
                break
        else:
            raise RouterError("The router did not start; run `tandem router` to see why.")
        async with httpx.AsyncClient() as client:
            while (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
    return port


def _cores() -> tuple[int, int]:
    """A core for load and engines, and one for the router; the same when there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def _cpu_s(pid: int) -> float:
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss_mib(pid: int) -> float:
    if not pid:
        return 0.0
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _progress(number: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rround {number} of {total}", end="\n" if number == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
