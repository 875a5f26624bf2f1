"""`tandem bench experts`: dispatch and combine between rank processes on this machine, on GPUs, or on paper.

On the CPU, over NIXL in host memory, the times are functional: they say that the path works and what this machine makes
of it, and nothing about a GPU or a network. `--device cuda` runs `experts_nvlink`, with NCCL beside it in the same run;
`--model` prints what one host with more GPUs would take (`expert_host`), and many hosts (`expert_scale`).

A step of each case is compared with the reference first. Then every rank takes the same number of steps with fresh
routings in a cycle, and the slowest rank of a step counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from engine_shim.bench import expert_host, expert_scale
from engine_shim.bench.expert_processes import Crew, crew_of
from engine_shim.bench.expert_steps import Case, Routing, Sample, time_steps
from engine_shim.bench.words import names, new_file, number, numbers
from engine_shim.experts.regions import Regions, plan_regions
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from router.contract.errors import BadSettings, TandemError

ANSWER_FOR_S = 600.0


def main(argv: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    where = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    where.add_argument("--device", default="cpu")
    place, rest = where.parse_known_args(argv)
    if place.device == "cuda":
        return subprocess.call([sys.executable, "-m", "engine_shim.bench.experts_nvlink", *rest])
    options = _options(argv)
    if options.model:
        print(expert_host.report(), expert_scale.report(), sep="\n\n")
        return 0
    try:
        figures = _measure(options)
    except TandemError as error:
        print(error.message, file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text("".join(json.dumps(figure) + "\n" for figure in figures))
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tandem bench experts",
        description="Measure dispatch and combine between expert ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--model",
        action="store_true",
        help="print models of EP4 and 8 over NVLink, and of EP16 to 64 over EFA and ConnectX-7",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: all else goes to the benchmark of the kernels")
    add("--ranks", type=number, default=2, metavar="N", help="rank processes")
    add("--tokens", type=numbers, default="1,8,32,128", metavar="T,...", help="tokens of a rank in a step")
    routings, numerics = ",".join(Routing), ",".join(ExpertNumerics)
    add("--routing", type=names(Routing), default=routings, metavar="NAME,...", help="how tokens choose experts")
    add("--experts", type=number, default=32, metavar="E", help="experts of all ranks")
    add("--top-k", type=number, default=4, metavar="K", help="experts of a token")
    add("--hidden", type=number, default=1024, metavar="H", help="numbers of a token")
    add("--numerics", type=names(ExpertNumerics), default=numerics, metavar="NAME,...", help="exact, dedup, or both")
    steps = "measured steps of a case, after a fifth as many to warm up"
    add("--steps", type=number, default=100, metavar="N", help=steps)
    add("--json", type=new_file, metavar="FILE", help="write a line of JSON for each case")
    options = parser.parse_args(argv)
    if options.top_k > options.experts:
        parser.error(f"--top-k {options.top_k} of --experts {options.experts}: a token chooses each at most once")
    return options


def _measure(options: argparse.Namespace) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    print("Functional times on the CPU (µs, slowest rank of a step): NIXL in host memory, all ranks on one machine.")
    for numerics in options.numerics:
        shape = ExpertShape(
            num_ranks=options.ranks,
            num_experts=options.experts,
            top_k=options.top_k,
            hidden_size=options.hidden,
            max_tokens=max(options.tokens),
            numerics=numerics,
            combine_format=RowFormat.BF16,
        )
        regions = plan_regions(shape)
        print(f"\n{numerics}: {regions.total_bytes / 2**20:.1f} MiB of buffers a rank")
        halves = "".join(f"{half + ' p50':>13}{'p99':>9}" for half in ("dispatch", "combine"))
        print(f"  {'T':>5} {'routing':<8}{halves}{'both p50':>10}{'KB out':>9}")
        with crew_of(regions, time_steps, wait_for_s=60.0) as crew:
            cases = [Case(num, routing, options.steps) for num in options.tokens for routing in options.routing]
            figures += [_one(crew, regions, case) for case in cases]
    return figures


def _one(crew: Crew, regions: Regions, case: Case) -> dict[str, object]:
    for link in crew.links:
        link.send(case)
    answers: list[list[Sample] | str] = [crew.receive(rank, ANSWER_FOR_S) for rank in range(len(crew.links))]
    wrong = [answer for answer in answers if isinstance(answer, str)]
    if wrong:
        raise BadSettings(f"The outputs are wrong, so no time is told: {wrong[0]}")
    steps = list(zip(*(answer for answer in answers if not isinstance(answer, str)), strict=True))
    slowest = {
        "dispatch": sorted(max(one.dispatch_us for one in step) for step in steps),
        "combine": sorted(max(one.combine_us for one in step) for step in steps),
        "both": sorted(max(one.dispatch_us + one.combine_us for one in step) for step in steps),
    }
    wire_bytes = max(sum(one.wire_bytes for one in rank) / len(rank) for rank in zip(*steps, strict=True))
    at = {name: {share: _at(times, share) for share in (50, 90, 99)} for name, times in slowest.items()}
    print(
        f"  {case.tokens:>5} {case.routing:<8}{at['dispatch'][50]:>13.0f}{at['dispatch'][99]:>9.0f}"
        f"{at['combine'][50]:>13.0f}{at['combine'][99]:>9.0f}{at['both'][50]:>10.0f}{wire_bytes / 1e3:>9.1f}"
    )
    facts = asdict(regions.shape) | asdict(case)
    return facts | {
        "us": at,
        "wire_bytes": wire_bytes,
        "buffer_bytes": regions.total_bytes,
        "device": "cpu, functional",
    }


def _at(times: list[float], share: int) -> float:
    return times[min(len(times) * share // 100, len(times) - 1)]
