"""Many steps over NVLink with two or more real processes, random sleeps and changing T; and the death of one of them.

python -m tests.support.nvlink_soak --steps 10000          must end without a fault, every 50th step checked
python -m tests.support.nvlink_soak --kill PHASE,...       rank 1 is killed there; the others must say so in time

With more ranks than GPUs the ranks share them, over CUDA IPC.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from enum import StrEnum
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from engine_shim.bench.experts_nvlink_rank import CHECK_ERROR, Inputs, check_step, make_inputs
from engine_shim.bench.experts_world import is_shared, join_world, world_regions
from engine_shim.experts.nvlink.experts import NvlinkExperts, NvlinkSettings
from engine_shim.experts.nvlink.region import plan_region
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from router.contract.errors import RankGone
from tests.support.nvlink_groups import library

CHECK_EVERY = 50


class Moment(StrEnum):
    """When rank 1 dies, in the middle one of its steps."""

    BEFORE = "before"
    """It has sent nothing of the step."""
    SPINNING = "spinning"
    """Its own kernel waits for the others' counts."""
    DISPATCHED = "dispatched"
    """Its rows have left."""
    HELD = "held"
    """It holds its rows and has answered none."""
    ANSWERED = "answered"
    """Its answers have left."""


def run_rank(rank: int, arguments: argparse.Namespace, way: str, numerics: str, times: object) -> None:
    device = join_world(rank, arguments.ranks, arguments.port)
    formats = (RowFormat.F32, RowFormat.F32) if arguments.f32 else (RowFormat.FP8, RowFormat.BF16)
    shape = ExpertShape(arguments.ranks, 64, 4, 1024, 96, 16, ExpertNumerics(numerics), *formats)
    plan = plan_region(shape)
    memory = world_regions(plan.num_bytes, device, library(), by_handle=way == "handle")
    experts = NvlinkExperts(shape, rank, plan, memory, library(), NvlinkSettings(timeout_s=arguments.timeout_s))
    pool = [make_inputs(shape, "zipf", rank, step, device) for step in range(8)]
    dice = random.Random(rank)
    try:
        soak(experts, pool, dice, arguments)
    except RankGone as gone:
        torch.cuda.synchronize()  # no kernel is left spinning
        times[rank] = time.monotonic()  # type: ignore[index]
        print(f"rank {rank}: {gone.message}", flush=True)
        os._exit(0)
    dist.barrier()
    experts.close()
    if rank == 0:
        print(f"{way}, {numerics}: {arguments.steps} steps on {arguments.ranks} ranks, no fault", flush=True)
    dist.destroy_process_group()


def soak(experts: NvlinkExperts, pool: list[Inputs], dice: random.Random, arguments: argparse.Namespace) -> None:
    moment = Moment(arguments.moment) if arguments.moment else None
    for step in range(arguments.steps):
        given = pool[step % len(pool)]
        tokens = dice.choice((0, 1, 7, 32, 95, 96))
        cut = Inputs(given.x[:tokens].contiguous(), given.topk[:tokens], given.weights[:tokens])
        if moment and step == arguments.steps // 2:
            if experts.rank == 1:
                die_at(moment, experts, given, Path(arguments.mark))
            time.sleep(0.3 if moment is Moment.SPINNING else 0.0)
        if dice.random() < 0.02:
            torch.cuda._sleep(dice.randrange(1_000_000))
        if dice.random() < 0.01:
            time.sleep(dice.random() * 0.01)
        if step % CHECK_EVERY == 0:  # of all ranks at once: they compute each other's answers
            error = check_step(experts, cut)
            if tokens and not error < CHECK_ERROR:
                raise SystemExit(f"rank {experts.rank} step {step}: error {error}")
        else:
            flight, _held = experts.dispatch(cut.x, cut.topk, cut.weights)
            experts.combine(flight, experts.answer_region(flight))
        if moment:  # the host would run ahead by many steps, and hear of the death when it has no room for more
            torch.cuda.synchronize()


def die_at(moment: Moment, experts: NvlinkExperts, given: Inputs, mark: Path) -> None:
    """The step as far as `moment`; then the process is gone."""
    torch.cuda.synchronize()
    if moment is Moment.SPINNING:
        experts.dispatch(given.x, given.topk, given.weights)
        time.sleep(0.1)
    elif moment is not Moment.BEFORE:
        flight = experts.dispatch_send(given.x, given.topk, given.weights)
        torch.cuda.synchronize()
        if moment is not Moment.DISPATCHED:
            experts.dispatch_receive(flight)
            torch.cuda.synchronize()
        if moment is Moment.ANSWERED:
            experts.combine_send(flight, experts.answer_region(flight))
            torch.cuda.synchronize()
    mark.write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def run(arguments: argparse.Namespace, way: str, numerics: str) -> None:
    context = mp.get_context("spawn")
    with context.Manager() as shared:
        times = shared.dict()
        ranks = [
            context.Process(target=run_rank, args=(rank, arguments, way, numerics, times))
            for rank in range(arguments.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(arguments.deadline_s)
            if process.is_alive():
                process.kill()
                raise SystemExit(f"{way}, {numerics}: a rank hangs")
        if arguments.moment:
            killed_at = float(Path(arguments.mark).read_text())
            late = {rank: round(at - killed_at, 2) for rank, at in times.items()}
            if len(late) != arguments.ranks - 1 or max(late.values()) > arguments.timeout_s + 1:
                raise SystemExit(f"{way}, {numerics}, {arguments.moment}: told after {late} s")
            print(
                f"{way}, {numerics}: rank 1 killed {arguments.moment}, told and idle after {late} s "
                f"(deadline {arguments.timeout_s} s); {free_again_s():.2f} s for a new kernel",
                flush=True,
            )
        elif any(process.exitcode for process in ranks):
            raise SystemExit(f"{way}, {numerics}: exit statuses {[process.exitcode for process in ranks]}")


def free_again_s() -> float:
    """Seconds for a product on the first GPU, by this process: a GPU that still spins would keep it waiting."""
    began = time.monotonic()
    square = torch.ones(1024, 1024, device="cuda")
    torch.mm(square, square).sum().item()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--kill", default="", metavar="PHASE,...", help=f"of {', '.join(Moment)}; or all")
    parser.add_argument("--ways", default="symmetric,handle")
    parser.add_argument("--numerics", default=",".join(ExpertNumerics))
    parser.add_argument("--f32", action="store_true", help="rows travel in float32, instead of fp8 there and bf16 back")
    parser.add_argument("--mark", default=".tandem-killed")
    parser.add_argument("--timeout-s", type=float, default=2.0, help="of a wait for a peer")
    parser.add_argument("--deadline-s", type=float, default=90.0)
    parser.add_argument("--port", type=int, default=29571)
    arguments = parser.parse_args(sys.argv[1:])
    arguments.ranks = arguments.ranks or torch.cuda.device_count()
    library()
    moments = [*Moment] if arguments.kill == "all" else arguments.kill.split(",")
    ways = ["handle"] if is_shared(arguments.ranks) else arguments.ways.split(",")
    for way, numerics, moment in product(ways, arguments.numerics.split(","), moments):
        arguments.port, arguments.moment = arguments.port + 1, moment
        run(arguments, way, numerics)


if __name__ == "__main__":
    main()
