"""The NVLink transport against the specification: bitwise, for every shape, with all ranks in this process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_shim.experts.port import Phase
from engine_shim.experts.quantise import DTYPES
from engine_shim.experts.reference import RankTokens, reference_combine, reference_dispatch
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from router.contract.errors import BadRequest, Impossible, RankGone
from tests.support.expert_steps import EIGHT_CASES, SMALL, STEP_CASES, StepCase, gaps, uniform
from tests.support.nvlink_groups import NvlinkGroup, devices_for, load_every_kernel, nvlink_group

pytestmark = pytest.mark.needs("gpu")

CASES = [
    case
    for case in (*STEP_CASES, *EIGHT_CASES)
    if (case.shape.dispatch_format is RowFormat.F32) is (case.shape.combine_format is RowFormat.F32)
]
F32 = ExpertShape(4, 16, 4, 272, 1100, expert_align=8, dispatch_format=RowFormat.F32, combine_format=RowFormat.F32)
CASES += [
    StepCase(f"f32, {numerics}, {tokens}", replace(F32, numerics=numerics), tokens, gaps, torch.float32)
    for numerics in ExpertNumerics
    for tokens in ((3, 0, 7, 16), (1100, 0, 390, 1))
]
WIDE = ExpertShape(num_ranks=2, num_experts=256, top_k=8, hidden_size=7168, max_tokens=128, expert_align=128)
CASES += [
    StepCase(f"wide, {numerics}", replace(WIDE, numerics=numerics), (40, 33), uniform) for numerics in ExpertNumerics
]
CASES += [
    StepCase(f"wider than a block, {numerics}", replace(SMALL, hidden_size=8192 + 384, numerics=numerics), (3, 0, 7, 1))
    for numerics in ExpertNumerics
]
MANY = ExpertShape(num_ranks=2, num_experts=8, top_k=2, hidden_size=768, max_tokens=1100)
CASES += [
    StepCase(f"many tokens, {numerics}, {row_format}", shape, tokens, gaps)
    for numerics in ExpertNumerics
    for row_format, tokens in ((RowFormat.FP8, (1100, 391)), (RowFormat.BF16, (70, 1025)))
    for shape in (replace(MANY, numerics=numerics, dispatch_format=row_format),)
]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    load_every_kernel()


def on_gpus(
    step: list[RankTokens], topk_dtype: torch.dtype = torch.int64, dtype: torch.dtype = torch.bfloat16
) -> list[RankTokens]:
    devices = devices_for(len(step))
    return [
        RankTokens(t.x.to(dtype).to(d), t.topk.to(topk_dtype).to(d), t.weights.to(d))
        for t, d in zip(step, devices, strict=True)
    ]


def check_step(
    group: NvlinkGroup, case: StepCase, seed: int, topk_dtype: torch.dtype = torch.int64
) -> list[torch.Tensor]:
    """One step; asserts every byte of it, and returns the outputs."""
    dtype = DTYPES[case.shape.combine_format]
    step = [RankTokens(t.x.to(dtype), t.topk, t.weights) for t in case.step(seed)]
    wanted = reference_dispatch(step, case.shape)
    there = on_gpus(step, topk_dtype, dtype)
    for rank in group.ranks:  # what is left over from the step before must not be taken for this one's
        part = rank._parts[(rank._flights + 1) % len(rank._parts)]
        for tensor in (part.numbers, part.scales, part.answers):
            tensor.view(torch.uint8).fill_(0xFF)
    out = [torch.full_like(tokens.x, float("nan")) for tokens in there]
    torch.cuda.synchronize()
    flown = group.dispatch(there)
    group.wait()
    answers = []
    for rank, ((_flight, held), want) in enumerate(zip(flown, wanted, strict=True)):
        assert not group.ranks[rank].status.failed, group.ranks[rank].status
        assert held.target.expert_counts.cpu().equal(want.target.expert_counts)
        assert held.target.expert_offsets.cpu().equal(want.target.expert_offsets)
        assert held.target.run_slots.cpu().to(torch.int64).equal(want.target.run_slots)
        filled = torch.nonzero(want.origins[:, 0] >= 0).squeeze(1)
        slots = len(want.origins)
        assert (
            held.rows.numbers[:slots].view(torch.uint8).cpu()[filled].equal(want.rows.numbers.view(torch.uint8)[filled])
        )
        assert held.rows.scales[:slots].cpu()[filled].equal(want.rows.scales[filled])
        generator = torch.Generator().manual_seed(seed * 31 + rank)
        answers.append(torch.randn(slots, case.shape.hidden_size, generator=generator).to(dtype))
    on_devices = [answer.to(tokens.x.device) for answer, tokens in zip(answers, there, strict=True)]
    torch.cuda.synchronize()
    group.combine([flight for flight, _ in flown], on_devices, out)
    group.wait()
    for got, want_out in zip(out, reference_combine(answers, step, case.shape, dtype), strict=True):
        assert got.cpu().equal(want_out)
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_byte_is_the_specification_s(case: StepCase) -> None:
    with nvlink_group(case.shape) as group:
        first = check_step(group, case, seed=1)
        check_step(group, case, seed=2, topk_dtype=torch.int32)
        again = check_step(group, case, seed=1)
        assert all(a.equal(b) for a, b in zip(first, again, strict=True))


def test_two_flights_are_under_way_at_once() -> None:
    case = StepCase("two flights", SMALL, (5, 16, 0, 3), uniform)
    with nvlink_group(SMALL) as group:
        steps = [[RankTokens(t.x, t.topk, t.weights) for t in case.step(seed)] for seed in (1, 2)]
        there = [on_gpus(step) for step in steps]
        out = [[torch.empty_like(t.x) for t in step] for step in there]
        torch.cuda.synchronize()
        flown = [group.dispatch(step) for step in there]
        group.wait()
        answers = [
            [torch.ones(SMALL.capacity_rows, SMALL.hidden_size, dtype=torch.bfloat16, device=t.x.device) for t in step]
            for step in there
        ]
        torch.cuda.synchronize()
        for which in (0, 1):
            group.combine([flight for flight, _ in flown[which]], answers[which], out[which])
        group.wait()
        for which, step in enumerate(steps):
            cpu = [answer.cpu() for answer in answers[which]]
            for got, want in zip(out[which], reference_combine(cpu, step, SMALL, torch.bfloat16), strict=True):
                assert got.cpu().equal(want)
        with pytest.raises(RankGone, match="not under way"):
            group.ranks[0].combine_receive(flown[0][0][0])


@pytest.mark.parametrize("numerics", ExpertNumerics)
def test_a_graph_is_replayed_with_other_tokens(numerics: ExpertNumerics) -> None:
    shape = replace(SMALL, num_ranks=1, numerics=numerics)
    with nvlink_group(shape) as group:
        rank, stream, device = group.ranks[0], group.streams[0], torch.device("cuda", 0)
        x = torch.zeros(16, 128, dtype=torch.bfloat16, device=device)
        topk = torch.zeros(16, 4, dtype=torch.int64, device=device)
        weights, live = torch.zeros(16, 4, device=device), torch.zeros(1, dtype=torch.int32, device=device)
        answers = torch.ones(shape.capacity_rows, 128, dtype=torch.bfloat16, device=device)
        out = torch.zeros_like(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(3):  # an odd number: the two parts of the region take turns over replays
                flight, _held = rank.dispatch(x, topk, weights, live)
                rank.combine(flight, answers, out)
        for seed, tokens in enumerate((16, 0, 7, 1)):
            step = StepCase("replay", shape, (16,), uniform).step(seed)[0]
            out.fill_(7)
            for to, source in ((x, step.x), (topk, step.topk), (weights, step.weights)):
                to.copy_(source)
            live.fill_(tokens)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                graph.replay()
            group.wait()
            cut = RankTokens(step.x[:tokens], step.topk[:tokens], step.weights[:tokens])
            (want,) = reference_combine([answers.cpu()], [cut], shape, torch.bfloat16)
            assert out.cpu()[:tokens].equal(want)
            assert bool((out[tokens:] == 7).all())


def test_a_rank_that_stays_away_is_named_and_nothing_hangs() -> None:
    case = StepCase("late", SMALL, (4, 4, 4, 4), uniform)
    with nvlink_group(SMALL, timeout_s=0.2) as group:
        there = on_gpus(case.step(1))
        out = torch.zeros_like(there[0].x)
        torch.cuda.synchronize()
        flights = []
        for rank in (0, 1, 3):
            with torch.cuda.stream(group.streams[rank]):
                flights.append(group.ranks[rank].dispatch_send(*_fields(there[rank])))
        group.wait()
        for rank in (0, 1, 3):
            status = group.ranks[rank].status
            assert (status.epoch, status.phase, status.peer, status.expected, status.seen) == (1, Phase.COUNTS, 2, 4, 3)
            with pytest.raises(RankGone, match="3 of 4"):
                group.ranks[rank].dispatch_receive(flights[0])
        del out


@pytest.mark.parametrize("numerics", ExpertNumerics)
def test_masked_ranks_are_left_out(numerics: ExpertNumerics) -> None:
    shape = replace(SMALL, numerics=numerics)
    case = StepCase("masked", shape, (4, 9, 0, 16), uniform)
    with nvlink_group(shape, timeout_s=1.0) as group:
        step = case.step(3)
        there = on_gpus(step)
        out = [torch.zeros_like(t.x) for t in there]
        answers = [torch.ones(shape.capacity_rows, 128, dtype=torch.bfloat16, device=t.x.device) for t in there]
        for rank in (0, 1, 3):
            group.ranks[rank].mask(frozenset({2}))
        torch.cuda.synchronize()
        group.ranks.pop(2), group.streams.pop(2), there.pop(2), out.pop(2), answers.pop(2)
        flown = group.dispatch(there)
        group.combine([flight for flight, _ in flown], answers, out)
        group.wait()
        gone = {2 * shape.local_experts + local for local in range(shape.local_experts)}
        rest = [RankTokens(t.x, t.topk.clone().apply_(lambda e: -1 if e in gone else e), t.weights) for t in step]
        ones = [torch.ones(shape.capacity_rows, 128).bfloat16() for _ in range(4)]
        wanted = reference_combine(ones, rest, shape, torch.bfloat16)
        assert not any(rank.status.failed for rank in group.ranks)
        for got, want in zip(out, [wanted[0], wanted[1], wanted[3]], strict=True):
            assert got.cpu().equal(want)


def test_an_expert_that_does_not_exist_is_told() -> None:
    shape = replace(SMALL, num_ranks=1)
    with nvlink_group(shape) as group:
        (tokens,) = on_gpus(StepCase("bad", shape, (4,), uniform).step(1))
        tokens.topk[2, 1] = 16
        torch.cuda.synchronize()
        with torch.cuda.stream(group.streams[0]):
            flight = group.ranks[0].dispatch_send(*_fields(tokens))
        group.wait()
        with pytest.raises(BadRequest, match="does not exist"):
            group.ranks[0].dispatch_receive(flight)


def test_the_others_are_told_at_once_when_a_rank_refuses() -> None:
    shape = replace(SMALL, num_ranks=2)
    with nvlink_group(shape, timeout_s=30.0) as group:
        refusing, waiting = on_gpus(StepCase("bad", shape, (4, 4), uniform).step(1))
        refusing.topk[2, 1] = 16
        torch.cuda.synchronize()
        with torch.cuda.stream(group.streams[1]):
            flight = group.ranks[1].dispatch_send(*_fields(waiting))
            group.ranks[1].dispatch_receive(flight)
        with torch.cuda.stream(group.streams[0]):
            group.ranks[0].dispatch_send(*_fields(refusing))
        group.wait()
        status = group.ranks[1].status
        assert (status.epoch, status.phase, status.peer) == (1, Phase.REFUSED, 0)
        with pytest.raises(RankGone, match="Rank 0 was given what it cannot do"):
            group.ranks[1].combine_receive(flight)


def test_the_others_are_told_at_once_when_a_rank_is_given_what_does_not_fit() -> None:
    shape = replace(SMALL, num_ranks=2)
    with nvlink_group(shape, timeout_s=30.0) as group:
        refusing, waiting = on_gpus(StepCase("bad", shape, (4, 4), uniform).step(1))
        # Cast now: a kernel that is first needed while another spins waits for that one to end.
        unfit = refusing.weights.double()
        torch.cuda.synchronize()
        with torch.cuda.stream(group.streams[1]):
            flight = group.ranks[1].dispatch_send(*_fields(waiting))
            group.ranks[1].dispatch_receive(flight)
        with torch.cuda.stream(group.streams[0]), pytest.raises(BadRequest, match="Weights must be float32"):
            group.ranks[0].dispatch_send(refusing.x, refusing.topk, unfit)
        group.wait()
        status = group.ranks[1].status
        assert (status.epoch, status.phase, status.peer) == (1, Phase.REFUSED, 0)
        with pytest.raises(BadRequest, match="what does not fit"):
            group.ranks[0].dispatch_send(*_fields(refusing))


def test_the_others_are_told_at_once_when_answers_do_not_fit() -> None:
    shape = replace(SMALL, num_ranks=2)
    with nvlink_group(shape, timeout_s=30.0) as group:
        there = on_gpus(StepCase("bad", shape, (4, 4), uniform).step(1))
        flown = group.dispatch(there)
        group.wait()
        answers = [torch.ones(shape.capacity_rows, shape.hidden_size, device=t.x.device) for t in there]
        fit = [one.bfloat16() for one in answers]
        torch.cuda.synchronize()
        with torch.cuda.stream(group.streams[1]):
            group.ranks[1].combine_send(flown[1][0], fit[1])
            group.ranks[1].combine_receive(flown[1][0])
        with torch.cuda.stream(group.streams[0]), pytest.raises(BadRequest, match="Answers must be bfloat16"):
            group.ranks[0].combine_send(flown[0][0], answers[0])
        group.wait()
        status = group.ranks[1].status
        assert (status.epoch, status.phase, status.peer) == (1, Phase.REFUSED, 0)


@pytest.mark.parametrize("numerics", ExpertNumerics)
def test_too_few_answers_are_told_to_all(numerics: ExpertNumerics) -> None:
    shape = replace(SMALL, num_ranks=2, numerics=numerics)
    with nvlink_group(shape, timeout_s=30.0) as group:
        there = on_gpus(StepCase("short", shape, (4, 4), uniform).step(1))
        flown = group.dispatch(there)
        group.wait()
        ends = [int(held.target.expert_offsets[-1]) for _, held in flown]
        answers = [
            torch.ones(end - rank, shape.hidden_size, dtype=torch.bfloat16, device=t.x.device)
            for rank, (end, t) in enumerate(zip(ends, there, strict=True))
        ]
        out = torch.zeros_like(there[0].x)
        torch.cuda.synchronize()
        for rank, stream, (flight, _), given in zip(group.ranks, group.streams, flown, answers, strict=True):
            with torch.cuda.stream(stream):
                rank.combine_send(flight, given)
        with torch.cuda.stream(group.streams[0]):
            group.ranks[0].combine_receive(flown[0][0], out)
        group.wait()
        told = [rank.status for rank in group.ranks]
        assert (told[1].phase, told[1].peer, told[1].expected, told[1].seen) == (Phase.COMBINE, 1, ends[1], ends[1] - 1)
        assert (told[0].phase, told[0].peer) == (Phase.REFUSED, 1)
        assert out.isnan().all()
        with pytest.raises(BadRequest, match="fewer answers"):
            group.ranks[1].combine_receive(flown[1][0])


def test_ranks_are_masked_between_flights() -> None:
    shape = replace(SMALL, num_ranks=1)
    with nvlink_group(shape) as group:
        (tokens,) = on_gpus(StepCase("mask", shape, (4,), uniform).step(1))
        with torch.cuda.stream(group.streams[0]):
            group.ranks[0].dispatch_send(*_fields(tokens))
        with pytest.raises(Impossible, match="between flights"):
            group.ranks[0].mask(frozenset({3}))
        group.wait()


def _fields(tokens: RankTokens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tokens.x, tokens.topk, tokens.weights
