"""The GPU half of the expert benchmark: rank processes, CUDA graphs, and NCCL and nixl_ep beside ours in the same run.

python -m engine_shim.bench.experts_nvlink --tokens 1,128,4096 --json OUT

With more ranks than GPUs the times are functional (`experts_world`), and NCCL is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from engine_shim.bench import experts_baselines
from engine_shim.bench.expert_steps import Routing
from engine_shim.bench.experts_figures import Figure, percentiles, print_figures
from engine_shim.bench.experts_nixl_ep import NixlEp, find_nixl_ep, open_store, part_of_store
from engine_shim.bench.experts_nvlink_rank import (
    Inputs,
    are_right,
    check_step,
    graph_of,
    leaving_bytes,
    make_inputs,
    time_eager,
    time_parts,
    time_replays,
)
from engine_shim.bench.experts_world import is_shared, join_world, world_regions
from engine_shim.bench.words import names, new_file, numbers
from engine_shim.experts.nvlink.experts import NvlinkExperts, NvlinkSettings
from engine_shim.experts.nvlink.library import load_library
from engine_shim.experts.nvlink.region import plan_region
from engine_shim.experts.shape import ExpertNumerics, ExpertShape

FLOOR_BYTES_PER_US = 450e3
"""NVLink of an H100 or H200, one direction."""
LONG_STEP_TOKENS = 1024


class RankRun:
    """All cases of one rank."""

    def __init__(self, rank: int, arguments: argparse.Namespace, device: torch.device) -> None:
        self.rank, self.arguments, self.device = rank, arguments, device
        self.library = load_library(Path(arguments.library) if arguments.library else None)
        self.figures: list[Figure] = []
        # Any: torch leaves it untyped.
        self._store: Any = None

    def shape(self, tokens: int, numerics: ExpertNumerics) -> ExpertShape:
        """The group of one case."""
        a = self.arguments
        return ExpertShape(dist.get_world_size(), a.experts, a.top_k, a.hidden, tokens, a.align, numerics)

    def measure_all(self, tokens: int) -> None:
        """Every case with so many tokens, told as it comes."""
        for numerics in self.arguments.numerics:
            for routing in self.arguments.routing:
                self.measure(tokens, numerics, routing)
        if self.arguments.nccl and not is_shared(self.arguments.ranks):
            self.measure_nccl(tokens)
        if self.arguments.nixl_ep:
            for routing in self.arguments.routing:
                self.measure_nixl_ep(tokens, routing)

    def add(self, figure: Figure) -> None:
        """Kept, and told by one rank."""
        self.figures.append(figure)
        if self.rank == 0:
            print_figures([figure])

    def measure(self, tokens: int, numerics: ExpertNumerics, routing: str) -> None:
        """One case of ours; its first step is checked before anything is timed."""
        shape = self.shape(tokens, numerics)
        plan = plan_region(shape)
        regions = world_regions(plan.num_bytes, self.device, self.library, by_handle=False)
        settings = NvlinkSettings(self.arguments.num_sms, timeout_s=5.0)
        experts = NvlinkExperts(shape, self.rank, plan, regions, self.library, settings)
        num_steps, inputs = self.inputs(shape, routing)
        errors = [check_step(experts, given) for given in inputs[:2]]
        if not are_right(errors) or experts.status.failed:
            raise SystemExit(f"{numerics} T={tokens}: error {errors}, {experts.status}")
        out = torch.empty_like(inputs[0].x)

        def step(given: Inputs) -> None:
            flight, _held = experts.dispatch(given.x, given.topk, given.weights)
            experts.combine(flight, experts.answer_region(flight), out)

        def steps() -> None:
            for given in inputs:
                step(given)

        times = time_replays(graph_of(steps), num_steps, self.arguments.replays)
        eager = time_eager(steps, num_steps, self.arguments.replays)

        def split(mark: Any) -> None:  # noqa: ANN401  a callable without arguments
            for given in inputs:
                mark()
                flight, _held = experts.dispatch(given.x, given.topk, given.weights)
                mark()
                experts.combine(flight, experts.answer_region(flight), out)
                mark()

        dispatch, combine = time_parts(split, 2, max(4, self.arguments.replays // 4))
        if experts.status.failed:
            raise SystemExit(f"{numerics} T={tokens}: {experts.status}")
        wire = [leaving_bytes(shape, given.topk, self.rank) for given in inputs]
        wire_bytes = sum(map(sum, wire)) // num_steps
        p50, p90, p99 = percentiles(times)
        self.add(
            Figure(
                f"tandem {numerics}",
                tokens,
                routing,
                p50,
                p90,
                p99,
                percentiles(dispatch)[0],
                percentiles(combine)[0],
                percentiles(eager)[0],
                wire_bytes,
                wire_bytes / FLOOR_BYTES_PER_US / p50,
                experts.num_sms,
                plan.num_bytes,
            )
        )
        experts.close()

    def inputs(self, shape: ExpertShape, routing: str) -> tuple[int, list[Inputs]]:
        """Steps of a graph, and what each brings."""
        num_steps = self.arguments.steps if shape.max_tokens < LONG_STEP_TOKENS else min(self.arguments.steps, 4)
        return num_steps, [make_inputs(shape, routing, self.rank, step, self.device) for step in range(num_steps)]

    def measure_nixl_ep(self, tokens: int, routing: str) -> None:
        """nixl_ep's low-latency kernels with the same inputs, or why they cannot run."""
        package, shape = find_nixl_ep(), self.shape(tokens, ExpertNumerics.EXACT)
        if isinstance(package, str):
            self.tell(f"nixl_ep cannot be imported: {package}")
            return
        if self._store is None:
            self._store = open_store(self.arguments.port + 1, first=self.rank == 0)
        peer = NixlEp(package, shape, self.rank, part_of_store(self._store, f"{tokens}-{routing}"))
        dist.barrier()
        num_steps, inputs = self.inputs(shape, routing)
        errors = [peer.check(given) for given in inputs[:2]]
        if not are_right(errors):
            self.tell(f"nixl_ep T={tokens} {routing}: its outputs are wrong (errors {errors}), so no time is told")
            peer.close()
            return
        answers, out = peer.answers(), torch.empty_like(inputs[0].x)

        def steps() -> None:
            for given in inputs:
                _rows, handle = peer.dispatch(given)
                peer.combine(given, answers, handle, out)

        times = time_replays(graph_of(steps), num_steps, self.arguments.replays)
        wire_bytes = sum(sum(leaving_bytes(shape, given.topk, self.rank)) for given in inputs) // num_steps
        p50, p90, p99 = percentiles(times)
        floor = wire_bytes / FLOOR_BYTES_PER_US / p50
        self.add(
            Figure("nixl_ep", tokens, routing, p50, p90, p99, None, None, None, wire_bytes, floor, 0, peer.buffer_bytes)
        )
        peer.close()

    def tell(self, line: str) -> None:
        """Once."""
        if self.rank == 0:
            print(line, flush=True)

    def measure_nccl(self, tokens: int) -> None:
        """NCCL's ways for as many tokens."""
        shape = self.shape(tokens, ExpertNumerics.EXACT)
        num_steps = self.arguments.steps if tokens < LONG_STEP_TOKENS else min(self.arguments.steps, 4)
        for name in ("all_to_all", "gather_scatter"):
            step = getattr(experts_baselines, f"{name}_step")(shape, self.device)
            times = time_replays(graph_of(partial(repeat, step, num_steps)), num_steps, self.arguments.replays)
            self.add(Figure(f"nccl {name}", tokens, "even", *percentiles(times)))


def repeat(step: Callable[[], None], times: int) -> None:
    """`step`, so many times."""
    for _ in range(times):
        step()


def run_rank(rank: int, arguments: argparse.Namespace) -> None:
    """The body of one process."""
    run = RankRun(rank, arguments, join_world(rank, arguments.ranks, arguments.port))
    if is_shared(arguments.ranks):
        run.tell(f"{arguments.ranks} ranks share {torch.cuda.device_count()} GPU: functional times, no NCCL.")
    for tokens in arguments.tokens:
        run.measure_all(tokens)
    if rank == 0 and arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "figures": [*map(asdict, run.figures)]}, indent=1))
    dist.destroy_process_group()


def machine() -> dict[str, str]:
    """What the figures are of."""
    # Any: torch leaves it untyped.
    nccl: Any = torch.cuda.nccl
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "gpus": f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, nccl.version())),
        "driver": driver.stdout.split("\n")[0],
        "commit": commit.stdout.strip(),
    }


def parse(words: list[str]) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=0, help="rank processes (default: one for each GPU)")
    parser.add_argument("--tokens", type=numbers, default="1,8,32,128,512,4096", help="tokens per rank, by commas")
    parser.add_argument("--numerics", type=names(ExpertNumerics), default="exact,dedup")
    parser.add_argument("--routing", type=names(Routing), default="uniform", help="uniform, zipf, hot; by commas")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--align", type=int, default=128, help="rows that each expert's begin is a multiple of")
    parser.add_argument("--num-sms", type=int, default=0, help="multiprocessors to use (default: all)")
    parser.add_argument("--steps", type=int, default=32, help="steps in a graph, each with a routing of its own")
    parser.add_argument("--replays", type=int, default=50)
    parser.add_argument("--nccl", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--nixl-ep", action=argparse.BooleanOptionalAction, default=True, help="where importable")
    parser.add_argument("--port", type=int, default=29541)
    parser.add_argument("--library", help="kernels built ahead (default: torch's loader builds them)")
    parser.add_argument("--json", type=new_file, help="file for the figures")
    arguments = parser.parse_args(words)
    arguments.ranks = arguments.ranks or torch.cuda.device_count()
    return arguments


def main() -> None:
    """Measure; exit status 1 when a check fails."""
    arguments = parse(sys.argv[1:])
    load_library(Path(arguments.library) if arguments.library else None)
    # Any: torch leaves the module untyped.
    processes: Any = mp
    processes.spawn(run_rank, (arguments,), arguments.ranks)


if __name__ == "__main__":
    main()
