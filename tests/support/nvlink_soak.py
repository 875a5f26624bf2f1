"""Many steps over NVLink with two or more real processes, random sleeps and changing T; and the death of one of them.

python -m tests.support.nvlink_soak --steps 10000          must end without a fault, every 50th step checked
python -m tests.support.nvlink_soak --kill                 rank 1 is killed; the others must say so in time
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from engine_shim.bench.experts_nvlink_rank import CHECK_ERROR, Inputs, check_step, make_inputs
from engine_shim.experts.nvlink.experts import NvlinkExperts, NvlinkSettings
from engine_shim.experts.nvlink.library import load_library
from engine_shim.experts.nvlink.peers import PeerRegions, regions_by_handle, symmetric_regions
from engine_shim.experts.nvlink.region import plan_region
from engine_shim.experts.shape import ExpertNumerics, ExpertShape
from router.contract.errors import RankGone

CHECK_EVERY = 50


def regions(way: str, num_bytes: int, rank: int, ranks: int) -> PeerRegions:
    device = torch.device("cuda", rank)
    if way == "symmetric":
        return symmetric_regions(num_bytes, device, dist.group.WORLD.group_name)

    def exchange(own: bytes) -> list[bytes]:
        everybody: list[bytes] = [b""] * ranks
        dist.all_gather_object(everybody, own)
        return everybody

    return regions_by_handle(num_bytes, device, rank, exchange, load_library(None))


def run_rank(rank: int, arguments: argparse.Namespace, way: str, numerics: str, times: object) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{arguments.port}",
        rank=rank,
        world_size=arguments.ranks,
        device_id=torch.device("cuda", rank),
    )
    shape = ExpertShape(arguments.ranks, 64, 4, 1024, 96, 16, ExpertNumerics(numerics))
    plan = plan_region(shape)
    memory = regions(way, plan.num_bytes, rank, arguments.ranks)
    experts = NvlinkExperts(
        shape, rank, plan, memory, load_library(None), NvlinkSettings(timeout_s=arguments.timeout_s)
    )
    device = torch.device("cuda", rank)
    pool = [make_inputs(shape, "zipf", rank, step, device) for step in range(8)]
    dice = random.Random(rank)
    try:
        soak(experts, pool, dice, arguments)
    except RankGone as gone:
        times[rank] = time.monotonic()  # type: ignore[index]
        torch.cuda.synchronize()  # no kernel is left spinning
        print(f"rank {rank}: {gone.message}", flush=True)
        os._exit(0)
    dist.barrier()
    experts.close()
    if rank == 0:
        print(f"{way}, {numerics}: {arguments.steps} steps on {arguments.ranks} ranks, no fault", flush=True)
    dist.destroy_process_group()


def soak(experts: NvlinkExperts, pool: list[Inputs], dice: random.Random, arguments: argparse.Namespace) -> None:
    for step in range(arguments.steps):
        given = pool[step % len(pool)]
        tokens = dice.choice((0, 1, 7, 32, 95, 96))
        cut = Inputs(given.x[:tokens].contiguous(), given.topk[:tokens], given.weights[:tokens])
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
        if arguments.kill and experts.rank == 1 and step == arguments.steps // 2:
            Path(arguments.mark).write_text(str(time.monotonic()))
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
        if arguments.kill:
            killed_at = float(Path(arguments.mark).read_text())
            late = {rank: round(at - killed_at, 2) for rank, at in times.items()}
            if len(late) != arguments.ranks - 1 or max(late.values()) > arguments.timeout_s + 1:
                raise SystemExit(f"{way}, {numerics}: told after {late} s")
            print(
                f"{way}, {numerics}: rank 1 killed, told after {late} s (deadline {arguments.timeout_s} s)", flush=True
            )
        elif any(process.exitcode for process in ranks):
            raise SystemExit(f"{way}, {numerics}: exit statuses {[process.exitcode for process in ranks]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--ways", default="symmetric,handle")
    parser.add_argument("--mark", default=".tandem-killed")
    parser.add_argument("--timeout-s", type=float, default=2.0, help="of a wait for a peer")
    parser.add_argument("--deadline-s", type=float, default=90.0)
    parser.add_argument("--port", type=int, default=29571)
    arguments = parser.parse_args(sys.argv[1:])
    arguments.ranks = arguments.ranks or torch.cuda.device_count()
    load_library(None)
    for way in arguments.ways.split(","):
        for numerics in ExpertNumerics:
            arguments.port += 1
            run(arguments, way, numerics)


if __name__ == "__main__":
    main()
