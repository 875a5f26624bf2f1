"""NCCL's ways of moving what dispatch and combine move, timed in the same run."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from engine_shim.experts.shape import ExpertShape


def all_to_all_step(shape: ExpertShape, device: torch.device) -> Callable[[], None]:
    """A row per (token, expert), as many to each rank: fp8 and scales there, bf16 back."""
    rows = max(shape.num_ranks, shape.max_tokens * shape.top_k // shape.num_ranks * shape.num_ranks)
    there = torch.randint(0, 255, (rows, shape.dispatch_row_bytes), dtype=torch.uint8, device=device)
    back = torch.randn(rows, shape.hidden_size, device=device).bfloat16()
    got, answers = torch.empty_like(there), torch.empty_like(back)

    def step() -> None:
        dist.all_to_all_single(got, there)
        dist.all_to_all_single(answers, back)

    return step


def gather_scatter_step(shape: ExpertShape, device: torch.device) -> Callable[[], None]:
    """Every rank gets every token, and sums what all ranks computed."""
    tokens = shape.max_tokens
    own = torch.randint(0, 255, (tokens, shape.dispatch_row_bytes), dtype=torch.uint8, device=device)
    everybody = torch.empty(shape.num_ranks * tokens, shape.dispatch_row_bytes, dtype=torch.uint8, device=device)
    partial = torch.randn(shape.num_ranks * tokens, shape.hidden_size, device=device).bfloat16()
    out = torch.empty(tokens, shape.hidden_size, dtype=torch.bfloat16, device=device)

    def step() -> None:
        dist.all_gather_into_tensor(everybody, own)
        dist.reduce_scatter_tensor(out, partial)

    return step
