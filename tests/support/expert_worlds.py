"""All ranks of a group on one LocalNetwork, moved by a seed; affine experts; everything compared with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from engine_shim.experts.exchange import Exchange
from engine_shim.experts.local import LocalNetwork
from engine_shim.experts.oracle import affine_experts
from engine_shim.experts.plan import TargetPlan
from engine_shim.experts.port import Dispatched, Flight
from engine_shim.experts.quantise import Rows, unpack_rows
from engine_shim.experts.reference import Held, RankTokens
from engine_shim.experts.regions import plan_regions
from engine_shim.experts.shape import ExpertShape


def answers_of(rows: Rows, target: TargetPlan, rank: int, shape: ExpertShape) -> torch.Tensor:
    """What affine experts say to each slot; NaN in padding, which must not be looked at."""
    experts = affine_experts(shape.num_experts, shape.hidden_size, 0)
    answers = torch.full((len(rows.numbers), shape.hidden_size), torch.nan)
    counts = target.expert_counts.to(torch.int64)
    local = torch.repeat_interleave(torch.arange(shape.local_experts), counts)
    begins = counts.cumsum(0) - counts
    slots = torch.arange(len(local)) - begins[local] + target.expert_offsets[local]
    x = unpack_rows(Rows(rows.numbers[slots], rows.scales[slots]))
    answers[slots] = experts.answer(x, local + rank * shape.local_experts).float()
    return answers


def same_rows(found: Dispatched, held: Held) -> bool:
    """Every byte of every slot that is no padding."""
    slots = torch.nonzero(held.origins[:, 0] >= 0).view(-1)
    numbers, scales = found.rows.numbers[slots], found.rows.scales[slots]
    return (
        torch.equal(found.target.expert_counts, held.target.expert_counts)
        and torch.equal(found.target.expert_offsets, held.target.expert_offsets)
        and torch.equal(numbers.contiguous().view(torch.uint8), held.rows.numbers[slots].view(torch.uint8))
        and torch.equal(scales, held.rows.scales[slots])
    )


class World:
    """N ranks that take steps, each at its own pace."""

    def __init__(
        self,
        shape: ExpertShape,
        seed: int,
        *,
        flights: int = 2,
        private_rows: int = 0,
        dead: frozenset[int] = frozenset(),
    ) -> None:
        """`dead` ranks are masked by all others."""
        self.random = Random(seed)
        self.shape = shape
        regions = plan_regions(shape, flights=flights, private_rows=private_rows)
        self.network = LocalNetwork(regions, self.random)
        ranks = range(shape.num_ranks)
        self.exchanges = [Exchange(regions, rank, self.network.transport(rank), dead) for rank in ranks]
        self.living = [rank for rank in ranks if rank not in dead]
        for rank in dead:
            self.network.kill(rank)
        self.dispatched: list[dict[int, Dispatched]] = [{} for _ in ranks]
        self.combined: list[dict[int, torch.Tensor]] = [{} for _ in ranks]
        self._begun = [0 for _ in ranks]

    def run(self, steps: Sequence[Sequence[RankTokens]], most_moves: int = 100_000) -> None:
        """Every living rank has taken every step; which rank does what next, and what lands, is drawn."""
        for _ in range(most_moves):
            if all(len(self.combined[rank]) == len(steps) for rank in self.living):
                return
            if self.random.random() < 0.7:
                self.network.move()
            else:
                self._advance(self.random.choice(self.living), steps)
        raise AssertionError("The ranks did not come to an end.")

    def _advance(self, rank: int, steps: Sequence[Sequence[RankTokens]]) -> None:
        exchange = self.exchanges[rank]
        landed = exchange.transport.poll()
        for source, signal in landed:
            exchange.landings.land(source, signal)
        if self._begun[rank] < len(steps) and exchange.has_room:
            tokens = steps[self._begun[rank]][rank]
            exchange.begin(tokens.x, tokens.topk, tokens.weights)
            self._begun[rank] += 1
        for epoch in range(1, self._begun[rank] + 1) if landed else ():
            if epoch not in self.combined[rank]:
                self._receive(rank, Flight(epoch))

    def _receive(self, rank: int, flight: Flight) -> None:
        exchange = self.exchanges[rank]
        if flight not in self.dispatched[rank]:
            found = exchange.dispatched(flight)
            if found is not None:
                self.dispatched[rank][flight] = found
                exchange.answer(flight, answers_of(found.rows, found.target, rank, self.shape))
            return
        sums = exchange.combined(flight)
        if sums is not None:
            self.combined[rank][flight] = sums
