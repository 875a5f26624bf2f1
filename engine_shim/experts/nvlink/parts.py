"""A part of the region and what belongs to it on this rank: one flight at a time uses it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_shim.experts.nvlink.params import Params
from engine_shim.experts.nvlink.peers import PeerRegions
from engine_shim.experts.nvlink.region import PartOffsets, kernel_columns
from engine_shim.experts.plan import TargetPlan
from engine_shim.experts.port import Flight
from engine_shim.experts.quantise import DTYPES
from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat

STATE_WORDS = 6 + 16
"""csrc/params.cuh, SlotState."""
CHUNKS, CHUNKED_TOKENS = 8, 1024
"""De-duplicated rows of so many tokens are spread in chunks, while later ones are on their way."""
STATUS_WORDS = 6


@dataclass(frozen=True, slots=True)
class GroupWords:
    """Words of a rank that all its parts share."""

    alive: torch.Tensor
    """int64 [1]: bit r says that rank r takes part."""
    error: torch.Tensor
    """int32 [1]: not 0 once a kernel has reported a fault; all later ones then end at once."""
    status: torch.Tensor
    """int32 [STATUS_WORDS] in pinned memory: fault, phase, peer, epoch, expected, seen."""


@dataclass(slots=True)
class Part:
    """One part of the region, and the flight that uses it."""

    params: Params
    numbers: torch.Tensor
    scales: torch.Tensor
    answers: torch.Tensor
    target: TargetPlan
    private: tuple[torch.Tensor, ...]
    """Device memory that the params point into."""
    flight: Flight | None = None
    held: tuple[torch.Tensor, ...] = ()
    """What the flight's kernels read; kept until it is over."""


def make_part(
    shape: ExpertShape, rank: int, offsets: PartOffsets, regions: PeerRegions, words: GroupWords, timeout_s: float
) -> Part:
    """A part without a flight, at step 0."""
    own = regions.own
    rows, width = shape.capacity_rows, shape.hidden_size

    def view(begin: int, dtype: torch.dtype, columns: int) -> torch.Tensor:
        return own[begin : begin + rows * columns * dtype.itemsize].view(dtype).view(rows, columns)

    def ints(*sizes: int) -> torch.Tensor:
        return torch.zeros(*sizes, dtype=torch.int32, device=own.device)

    target = TargetPlan(
        expert_counts=ints(shape.local_experts),
        expert_offsets=ints(shape.local_experts + 1),
        run_slots=ints(shape.num_ranks, shape.local_experts),
    )
    staged = shape.num_ranks * shape.max_tokens if shape.numerics is ExpertNumerics.DEDUP else 0
    private = {
        "state": ints(STATE_WORDS),
        "run_offset": ints(shape.max_tokens * shape.top_k),
        "dst_row": ints(shape.num_experts),
        "src_tokens": ints(shape.num_ranks),
        "landed_row": ints(staged * shape.top_k),
    }
    params = Params(
        **{name: getattr(offsets, name) for name in PartOffsets.__slots__},
        **_addresses(**private, src_row=target.run_slots, expert_rows=target.expert_counts),
        **_addresses(expert_start=target.expert_offsets),
        **_addresses(alive=words.alive, error=words.error, status=words.status),
        **_sizes(shape),
        timeout_ns=int(timeout_s * 1e9),
        me=rank,
    )
    params.region[: shape.num_ranks] = regions.addresses
    return Part(
        params=params,
        numbers=view(offsets.x, DTYPES[shape.dispatch_format], width),
        scales=view(offsets.scale, torch.float32, shape.num_scales),
        answers=view(offsets.y, DTYPES[shape.combine_format], width),
        target=target,
        private=tuple(private.values()),
    )


def _sizes(shape: ExpertShape) -> dict[str, int]:
    chunked = shape.numerics is ExpertNumerics.DEDUP and shape.max_tokens >= CHUNKED_TOKENS
    return {
        "ranks": shape.num_ranks,
        "experts": shape.num_experts,
        "local_experts": shape.local_experts,
        "topk": shape.top_k,
        "hidden": kernel_columns(shape),
        "max_tokens": shape.max_tokens,
        "align": shape.expert_align,
        "chunks": CHUNKS if chunked else 1,
        "fp8": int(shape.dispatch_format is RowFormat.FP8),
        "f32": int(shape.combine_format is RowFormat.F32),
    }


def _addresses(**tensors: torch.Tensor) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}
