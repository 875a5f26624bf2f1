"""Expert groups over GPU memory with all ranks in this process: more ranks than GPUs, on one GPU or several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from engine_shim.experts.nvlink.experts import NvlinkExperts, NvlinkSettings
from engine_shim.experts.nvlink.library import KernelLibrary, load_library
from engine_shim.experts.nvlink.peers import regions_together
from engine_shim.experts.nvlink.region import plan_region
from engine_shim.experts.port import Dispatched, Flight
from engine_shim.experts.quantise import DTYPES
from engine_shim.experts.reference import RankTokens
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat

MANY_TOKENS = 400
"""So many are sent by other kernels than a few."""
LIBRARY_VARIABLE = "TANDEM_TEST_EXPERT_LIBRARY"
"""A library built ahead; without it torch's loader builds one."""


@dataclass
class NvlinkGroup:
    """All ranks of a group, each with a stream of its own."""

    ranks: list[NvlinkExperts]
    streams: list[torch.cuda.Stream]

    def wait(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def dispatch(self, step: Sequence[RankTokens], **live: object) -> list[tuple[Flight, Dispatched]]:
        """Send halves of all ranks, then receive halves; nothing has been waited for on the host."""
        flights = []
        for rank, stream, tokens in zip(self.ranks, self.streams, step, strict=True):
            with torch.cuda.stream(stream):
                flights.append(rank.dispatch_send(tokens.x, tokens.topk, tokens.weights, **live))
        held = []
        for rank, stream, flight in zip(self.ranks, self.streams, flights, strict=True):
            with torch.cuda.stream(stream):
                held.append(rank.dispatch_receive(flight))
        return list(zip(flights, held, strict=True))

    def combine(self, flights: Sequence[Flight], answers: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        """Into `out`; nothing has been waited for on the host."""
        for rank, stream, flight, answer in zip(self.ranks, self.streams, flights, answers, strict=True):
            with torch.cuda.stream(stream):
                rank.combine_send(flight, answer)
        for rank, stream, flight, result in zip(self.ranks, self.streams, flights, out, strict=True):
            with torch.cuda.stream(stream):
                rank.combine_receive(flight, result)


def devices_for(num_ranks: int) -> list[torch.device]:
    """Ranks over all GPUs in turn."""
    return [torch.device("cuda", rank % torch.cuda.device_count()) for rank in range(num_ranks)]


def library() -> KernelLibrary:
    named = os.environ.get(LIBRARY_VARIABLE)
    return load_library(Path(named) if named else None)


@contextmanager
def nvlink_group(shape: ExpertShape, *, timeout_s: float = 5.0, flights: int = 2) -> Iterator[NvlinkGroup]:
    """A group of `shape`; its kernels share the GPUs' multiprocessors, since they wait for each other."""
    plan, devices = plan_region(shape, flights), devices_for(shape.num_ranks)
    regions = regions_together(plan.num_bytes, devices, library())
    sharing = -(-shape.num_ranks // torch.cuda.device_count())
    settings = NvlinkSettings(num_sms=max(1, 128 // sharing), timeout_s=timeout_s)
    ranks = [NvlinkExperts(shape, r, plan, regions[r], library(), settings) for r in range(shape.num_ranks)]
    try:
        yield NvlinkGroup(ranks, [torch.cuda.Stream(device) for device in devices])
    finally:
        torch.cuda.synchronize()
        for rank in ranks:
            rank.close()


def load_every_kernel() -> None:
    """A kernel that is first needed while another spins would wait for that one to end: so all are loaded now."""
    for numerics in ExpertNumerics:
        for row_format in RowFormat:
            answer = RowFormat.F32 if row_format is RowFormat.F32 else RowFormat.BF16
            shape = ExpertShape(1, 4, 2, 128, MANY_TOKENS, 1, numerics, row_format, answer)
            for device, tokens in product(devices_for(torch.cuda.device_count()), (4, MANY_TOKENS)):
                plan = plan_region(shape)
                (regions,) = regions_together(plan.num_bytes, [device], library())
                one = NvlinkExperts(shape, 0, plan, regions, library())
                x = torch.zeros(tokens, 128, dtype=DTYPES[answer], device=device)
                topk = torch.zeros(tokens, 2, dtype=torch.int64, device=device)
                flight = one.dispatch_send(x, topk, torch.zeros(tokens, 2, device=device))
                answers = torch.zeros_like(one.dispatch_receive(flight).rows.numbers, dtype=x.dtype)
                one.combine_send(flight, answers)
                one.combine_receive(flight)
                one.close()
