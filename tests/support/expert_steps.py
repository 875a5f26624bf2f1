"""Seeded steps of expert-parallel groups: a function of (seed, rank, token), so any rank can compute any other's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from engine_shim.experts.nvlink.region import MAX_EXPERTS
from engine_shim.experts.reference import RankTokens
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat

Choose = Callable[[torch.Generator, int, ExpertShape], torch.Tensor]
"""From (random, tokens, shape) to topk [tokens, K]."""


def uniform(generator: torch.Generator, tokens: int, shape: ExpertShape) -> torch.Tensor:
    """Each token's K experts are distinct (where there are K)."""
    scores = torch.rand(tokens, shape.num_experts, generator=generator)
    width = min(shape.top_k, shape.num_experts)
    topk = scores.topk(width, dim=1).indices if tokens else torch.zeros(0, width, dtype=torch.int64)
    return torch.nn.functional.pad(topk, (0, shape.top_k - width), value=-1)


def zipf(generator: torch.Generator, tokens: int, shape: ExpertShape, exponent: float = 1.5) -> torch.Tensor:
    """Expert e is chosen with a weight of (e + 1) ** -exponent."""
    odds = torch.arange(1, shape.num_experts + 1).double().pow(-exponent)
    if not tokens:
        return torch.zeros(0, shape.top_k, dtype=torch.int64)
    return torch.multinomial(odds.expand(tokens, -1), shape.top_k, replacement=False, generator=generator)


def one_expert(_generator: torch.Generator, tokens: int, shape: ExpertShape) -> torch.Tensor:
    """Everything to the last expert, K times for each token: repeated experts."""
    return torch.full((tokens, shape.top_k), shape.num_experts - 1)


def first_experts(_generator: torch.Generator, tokens: int, shape: ExpertShape) -> torch.Tensor:
    """Every token to experts 0 .. K - 1."""
    return torch.arange(shape.top_k).remainder(shape.num_experts).expand(tokens, -1).clone()


def one_rank(generator: torch.Generator, tokens: int, shape: ExpertShape) -> torch.Tensor:
    """Everything to experts of the last rank."""
    first = shape.num_experts - shape.local_experts
    return torch.randint(first, shape.num_experts, (tokens, shape.top_k), generator=generator)


def repeated(generator: torch.Generator, tokens: int, shape: ExpertShape) -> torch.Tensor:
    """Experts drawn one by one, so that some tokens name one twice."""
    return torch.randint(0, shape.num_experts, (tokens, shape.top_k), generator=generator)


def gaps(generator: torch.Generator, tokens: int, shape: ExpertShape) -> torch.Tensor:
    """A third of the choices, and all of every fourth token's, are -1."""
    topk = repeated(generator, tokens, shape)
    topk[torch.rand(topk.shape, generator=generator) < 1 / 3] = -1
    topk[::4] = -1
    return topk


def nobody(_generator: torch.Generator, tokens: int, shape: ExpertShape) -> torch.Tensor:
    """No token has any expert."""
    return torch.full((tokens, shape.top_k), -1)


@dataclass(frozen=True)
class StepCase:
    """One shape, how many tokens each rank brings, and how they choose."""

    name: str
    shape: ExpertShape
    tokens: Sequence[int]
    choose: Choose = uniform
    dtype: torch.dtype = torch.bfloat16

    def step(self, seed: int = 0) -> list[RankTokens]:
        return [rank_tokens(self, rank, seed) for rank in range(self.shape.num_ranks)]


def rank_tokens(case: StepCase, rank: int, seed: int) -> RankTokens:
    generator = torch.Generator().manual_seed(seed * 1009 + rank)
    tokens, shape = case.tokens[rank], case.shape
    x = torch.randn(tokens, shape.hidden_size, generator=generator).to(case.dtype)
    weights = torch.randn(tokens, shape.top_k, generator=generator)
    return RankTokens(x, case.choose(generator, tokens, shape), weights)


SMALL = ExpertShape(num_ranks=4, num_experts=16, top_k=4, hidden_size=128, max_tokens=16)
"""Four ranks of four experts."""
EIGHT = replace(SMALL, num_ranks=8, num_experts=32)
"""As many ranks as a host has GPUs."""


def step_cases() -> list[StepCase]:
    """Every shape that notes of the field found broken somewhere, small enough for a laptop, in both numerics."""
    f32 = RowFormat.F32
    plain: list[tuple[str, dict[str, object], Sequence[int], Choose]] = [
        ("uniform", {}, (16, 16, 16, 16), uniform),
        ("one token", {}, (1, 1, 1, 1), uniform),
        ("odd and uneven", {}, (7, 16, 1, 3), uniform),
        ("one silent rank", {}, (5, 0, 9, 2), uniform),
        ("only one rank speaks", {}, (16, 0, 0, 0), uniform),
        ("all silent", {}, (0, 0, 0, 0), uniform),
        ("all to one expert", {}, (16, 3, 16, 1), one_expert),
        ("all to the first experts", {}, (16, 16, 16, 16), first_experts),
        ("all to one rank", {}, (16, 16, 16, 16), one_rank),
        ("repeated experts", {"num_experts": 4}, (16, 2, 7, 16), repeated),
        ("no expert", {}, (16, 5, 16, 0), gaps),
        ("nobody chooses", {}, (3, 5, 1, 2), nobody),
        ("zipf", {"num_experts": 64}, (16, 16, 16, 16), zipf),
        ("padding", {"expert_align": 16}, (8, 8, 1, 0), uniform),
        ("padding, empty experts", {"expert_align": 16, "num_experts": 64}, (2, 1, 0, 3), uniform),
        ("one choice", {"top_k": 1}, (16, 4, 9, 16), uniform),
        ("sixteen choices", {"top_k": 16}, (4, 3, 9, 2), uniform),
        ("more choices than experts", {"top_k": 6, "num_experts": 4}, (4, 3, 9, 2), repeated),
        ("512 experts", {"num_experts": 512, "top_k": 8}, (16, 9, 2, 16), uniform),
        ("one rank", {"num_ranks": 1}, (16,), uniform),
        ("two ranks", {"num_ranks": 2}, (16, 5), gaps),
        ("three ranks", {"num_ranks": 3, "num_experts": 6}, (16, 5, 2), uniform),
        ("eight ranks", {"num_ranks": 8, "num_experts": 64}, (3, 1, 4, 1, 5, 9, 2, 6), uniform),
        ("bf16", {"dispatch_format": RowFormat.BF16, "hidden_size": 48}, (9, 4, 0, 16), repeated),
        ("f32", {"dispatch_format": f32, "combine_format": f32, "hidden_size": 24}, (9, 4, 0, 16), gaps),
        ("f32 back", {"combine_format": RowFormat.F32, "hidden_size": 256}, (9, 4, 0, 16), uniform),
    ]
    return [
        StepCase(f"{name}, {numerics}", replace(SMALL, numerics=numerics, **changes), tokens, choose)  # type: ignore[arg-type]
        for numerics in ExpertNumerics
        for name, changes, tokens, choose in plain
    ]


def with_eight_ranks(case: StepCase) -> StepCase:
    """The case with eight ranks instead of four: twice the experts, and the tokens of ranks 3 to 0 for ranks 4 to 7."""
    num_experts = min(2 * case.shape.num_experts, MAX_EXPERTS)
    shape = replace(case.shape, num_ranks=8, num_experts=num_experts)
    return replace(case, name=f"{case.name}, eight", shape=shape, tokens=(*case.tokens, *reversed(case.tokens)))


STEP_CASES = step_cases()
EIGHT_CASES = [with_eight_ranks(case) for case in STEP_CASES if case.shape.num_ranks == SMALL.num_ranks]
