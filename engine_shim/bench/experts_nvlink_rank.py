"""What one rank of the expert benchmark does on its GPU: check a step, then time graphs of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from engine_shim.bench.experts_world import slowest
from engine_shim.experts.nvlink.experts import NvlinkExperts
from engine_shim.experts.quantise import DTYPES, pack_rows, unpack_rows
from engine_shim.experts.shape import ExpertNumerics, ExpertShape

CHECK_ERROR = 2.0**-6
"""Greatest relative error of a checked step; a wrong row or weight gives errors near 1."""
WARM_REPLAYS = 5


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a rank brings to one step, on its GPU."""

    x: torch.Tensor
    topk: torch.Tensor
    weights: torch.Tensor


def make_inputs(shape: ExpertShape, routing: str, rank: int, step: int, device: torch.device) -> Inputs:
    """Seeded by rank and step."""
    generator = torch.Generator().manual_seed(step * 1009 + rank)
    tokens = shape.max_tokens
    x = torch.randn(tokens, shape.hidden_size, generator=generator).to(DTYPES[shape.combine_format])
    odds = torch.ones(shape.num_experts)
    if routing == "zipf":
        odds = 1.0 / torch.arange(1, shape.num_experts + 1)
    topk = torch.multinomial(odds.expand(tokens, -1), shape.top_k, generator=generator)
    if routing == "hot":
        # One expert is among the choices of every token.
        topk[:, 0] = torch.where((topk == 0).any(1), topk[:, 0], 0)
    weights = torch.rand(tokens, shape.top_k, generator=generator)
    return Inputs(x.to(device), topk.to(device), weights.to(device))


def leaving_bytes(shape: ExpertShape, topk: torch.Tensor, rank: int) -> tuple[int, int]:
    """Bytes that this rank's tokens put on the wire: to other ranks by dispatch, and back by combine."""
    ranks = topk.to(torch.int64) // shape.local_experts
    if shape.numerics is ExpertNumerics.EXACT:
        rows = int((ranks != rank).sum())
    else:
        rows = sum(int((ranks == peer).any(1).sum()) for peer in range(shape.num_ranks) if peer != rank)
    return rows * shape.dispatch_row_bytes, rows * shape.combine_row_bytes


def check_step(experts: NvlinkExperts, given: Inputs) -> float:
    """Relative error of one step whose expert e multiplies by 1 + e / E, against float64 on what fp8 left of x."""
    shape, device = experts.shape, given.x.device
    gains = 1 + torch.arange(shape.num_experts, device=device) / shape.num_experts
    flight = experts.dispatch_send(given.x, given.topk, given.weights)
    held = experts.dispatch_receive(flight)
    end = int(held.target.expert_offsets[-1])
    sizes = held.target.expert_offsets.diff()
    first = experts.rank * shape.local_experts
    row_gains = gains[first : first + shape.local_experts].repeat_interleave(sizes.long())
    answers = experts.answer_region(flight)
    rows = unpack_rows(type(held.rows)(held.rows.numbers[:end], held.rows.scales[:end]))
    answers[:end] = (rows * row_gains.unsqueeze(1)).to(answers.dtype)
    experts.combine_send(flight, answers)
    got = experts.combine_receive(flight).double()
    seen = unpack_rows(pack_rows(given.x, shape.dispatch_format)).double()
    wanted = seen * (given.weights.double() * gains[given.topk].double()).sum(1, keepdim=True)
    return float((got - wanted).norm() / wanted.norm())


def are_right(errors: Sequence[float]) -> bool:
    """Those of all ranks, which ask together, are small; an error that is no number is none that is small."""
    wrong = not all(error <= CHECK_ERROR for error in errors)
    return slowest([float(wrong)]) == [0.0]


def graph_of(steps: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`steps` captured, after one run of them without a graph."""
    # Any: torch leaves its constructor untyped.
    make_stream: Any = torch.cuda.Stream
    stream = make_stream()
    with torch.cuda.stream(stream):
        steps()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        steps()
    torch.cuda.synchronize()
    dist.barrier()
    return graph


def time_replays(graph: torch.cuda.CUDAGraph, num_steps: int, replays: int) -> list[float]:
    """Microseconds per step of each replay, of the slowest rank."""
    return _time_runs(graph.replay, num_steps, replays)


def time_eager(steps: Callable[[], None], num_steps: int, replays: int) -> list[float]:
    """The same without a graph: `steps` launches all of them."""
    return _time_runs(steps, num_steps, replays)


def _time_runs(run: Callable[[], None], num_steps: int, replays: int) -> list[float]:
    marks = []
    dist.barrier()
    # One after the other without a pause: the first ones also wait for the other ranks' hosts, and are not counted.
    # Any: torch leaves its constructor untyped.
    make_event: Any = torch.cuda.Event
    for _ in range(WARM_REPLAYS + replays):
        begin, end = make_event(enable_timing=True), make_event(enable_timing=True)
        begin.record()
        run()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return slowest([begin.elapsed_time(end) * 1e3 / num_steps for begin, end in marks[WARM_REPLAYS:]])


def time_parts(steps: Callable[[Callable[[], None]], None], parts: int, replays: int) -> list[list[float]]:
    """Microseconds of each part of each step, of the slowest rank: `steps` calls its argument at every border."""
    marks: list[torch.cuda.Event] = []

    def mark() -> None:
        # Any: an event that a graph records is newer than torch's types.
        make_event: Any = torch.cuda.Event
        event = make_event(enable_timing=True, external=True)
        event.record()
        marks.append(event)

    steps(lambda: None)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps(mark)
    found: list[list[float]] = [[] for _ in range(parts)]
    for _ in range(replays):
        dist.barrier()
        graph.replay()
        torch.cuda.synchronize()
        gaps = [a.elapsed_time(b) * 1e3 for a, b in pairwise(marks)]
        # The first step of a replay waits for the other ranks to start theirs.
        for part in range(parts):
            found[part] += gaps[parts + 1 + part :: parts + 1]
    return [slowest(times) for times in found]
