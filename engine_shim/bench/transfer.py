"""`tandem bench transfer`: how quickly KV cache moves between two agents, by bytes, fragmentation and layout.

Two real NIXL agents in two processes move block tables of chosen fragmentation, by WRITE (push) and READ (pull). Every
case is checked byte by byte before its times are told and after its last round. Two ceilings are measured in the same
run for each number of bytes: one contiguous WRITE, and a plain copy within the source's memory.

`landed` is the time from the beginning of the posting until the target knows that all bytes are there: the arrival of
the tag of a WRITE, the end of a READ. GB/s are bytes over the median of it. What the plan costs
comes before and is told apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from engine_shim.bench.terminal import say
from engine_shim.bench.transfer_agent import AgentProcess, AgentSpec
from engine_shim.bench.transfer_case import BLOCK_STEP_BYTES, SPREAD, Case, Shape, parse_layouts
from engine_shim.bench.transfer_figures import Figures, measure, measure_copy
from engine_shim.bench.transfer_report import machine, print_table, report
from engine_shim.fabric.port import CopyOp
from router.contract.errors import BadSettings, TandemError
from router.contract.kv import KVOrder

KIB = 1024


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; returns the exit status. Raises BadSettings for options that make no sense."""
    options = _options(argv)
    cases = _cases(options)
    devices = _devices(options.devices)
    agents = _start(devices, SPREAD * max(case.num_bytes for case in cases), options)
    try:
        figures = _measure_all(agents, cases, options.rounds)
    finally:
        for agent in agents:
            agent.end()
    print_table(figures, devices, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(report(figures, vars(options), machine(devices)), indent=2) + "\n")
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tandem bench transfer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--devices", default="auto", help="of source and target: cpu,cpu or cuda:0,cuda:1 (%(default)s: GPUs if any)")
    add("--ops", default="write,read", help="write (push) and read (pull) (%(default)s)")
    add("--blocks", default="16,256", help="blocks to move (%(default)s)")
    add("--block-kib", default="16,64", help="KiB of a block, multiples of 8 (%(default)s)")
    add("--runs", default="all,16,4,1", help="neighbouring blocks per run; all: one run, 1: shuffled (%(default)s)")
    add(
        "--layouts",
        default="block:block,layer:layer,block:layer,block:block/8",
        help="source:target; /N: tokens of a block, else 16 (%(default)s)",
    )
    add(
        "--paths",
        default="direct,staged",
        help="direct, staged (WRITEs only), mapped, auto (the cheapest one) (%(default)s)",
    )
    add("--ring-mib", type=int, default=256, help="MiB of each side's staging ring (%(default)s)")
    add("--rounds", type=int, default=30, help="timed rounds of each case, after one that is not (%(default)s)")
    add("--backend", default="UCX", help="NIXL's backend (%(default)s)")
    add("--json", metavar="OUT", help="also write the figures to this file")
    return parser.parse_args(argv)


def _cases(options: argparse.Namespace) -> list[Case]:
    if options.rounds < 1:
        raise BadSettings("--rounds must be at least 1.")
    sizes = [KIB * kib for kib in _numbers("--block-kib", options.block_kib)]
    if any(size % BLOCK_STEP_BYTES for size in sizes):
        raise BadSettings(
            f"--block-kib {options.block_kib!r}: sizes must be multiples of {BLOCK_STEP_BYTES // KIB} KiB."
        )
    runs = _numbers("--runs", options.runs.replace("all", "0"), least=0)
    ops = [_op(word) for word in options.ops.split(",")]
    counts = _numbers("--blocks", options.blocks)
    paths = _paths(options.paths)
    ways = [(op, path) for op in ops for path in paths if op is CopyOp.WRITE or path != "staged"]
    return [
        Case(op, path, source, target, num_blocks, size, run)
        for size, num_blocks, (source, target), run, (op, path) in product(
            sizes, counts, parse_layouts(options.layouts), runs, ways
        )
    ]


def _paths(text: str) -> list[str]:
    paths = [word.strip() for word in text.split(",")]
    if not set(paths) <= {"direct", "staged", "mapped", "auto"}:
        raise BadSettings(f"--paths {text!r} must be of direct, staged, mapped and auto.")
    return paths


def _numbers(flag: str, text: str, least: int = 1) -> list[int]:
    numbers = [int(word) if word.strip().isdigit() else -1 for word in text.split(",")]
    if min(numbers) < least:
        raise BadSettings(f"{flag} {text!r} is no list of numbers from {least} up; write for example 1,8.")
    return numbers


def _op(word: str) -> CopyOp:
    try:
        return CopyOp(word.strip().upper())
    except ValueError as error:
        raise BadSettings(f"--ops: {word!r} is neither write nor read.") from error


def _devices(text: str) -> tuple[str, str]:
    if text == "auto":
        return _gpus()
    source, _, target = text.partition(",")
    for device in (source, target or source):
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
            raise BadSettings(f"--devices: {device!r} is no device; write cpu or cuda:0.")
    return source, target or source


def _gpus() -> tuple[str, str]:
    try:
        import torch  # noqa: PLC0415  only the search for a GPU needs it
    except ModuleNotFoundError:
        return "cpu", "cpu"
    count = torch.cuda.device_count()
    return ("cuda:0", f"cuda:{min(1, count - 1)}") if count else ("cpu", "cpu")


def _start(devices: tuple[str, str], num_bytes: int, options: argparse.Namespace) -> tuple[AgentProcess, AgentProcess]:
    ring_bytes = options.ring_mib << 20
    source = AgentProcess(AgentSpec("source@1", devices[0], num_bytes, options.backend, ring_bytes))
    target = AgentProcess(AgentSpec("target@1", devices[1], num_bytes, options.backend, ring_bytes))
    cards = source.ask("card"), target.ask("card")
    source.ask("meet", cards[1])
    target.ask("meet", cards[0])
    return source, target


def _measure_all(agents: tuple[AgentProcess, AgentProcess], cases: list[Case], rounds: int) -> list[Figures]:
    plain = Shape(KVOrder.BLOCK_FIRST)
    figures: list[Figures] = []
    for num_bytes in sorted({case.num_bytes for case in cases}):
        block_bytes = next(case.block_bytes for case in cases if case.num_bytes == num_bytes)
        whole = Case(CopyOp.WRITE, "direct", plain, plain, num_bytes // block_bytes, block_bytes, 0)
        say(f"{num_bytes / 2**20:.2f} MiB: ceilings")
        copy = measure_copy(agents[0], num_bytes, rounds)
        ceiling = measure(agents, whole, rounds, "one WRITE")
        figures += [copy, ceiling]
        group = [case for case in cases if case.num_bytes == num_bytes]
        for index, case in enumerate(group):
            say(f"{num_bytes / 2**20:.2f} MiB: case {index + 1} of {len(group)}")
            figures.append(measure(agents, case, rounds))
    say("")
    return figures


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TandemError as failure:
        sys.exit(failure.message)
