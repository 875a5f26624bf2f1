"""A rank's region: the memory that its peers write and read, and which bytes of it are what. Pure arithmetic.

One region per rank, the same layout on all, so that an offset here is an offset there. It has one part per flight under
way, and nothing of two parts is shared but the first word:

    refused      a word: 1 + the rank that takes no further part, written by it
    counts       N rows of E + 1 tagged words, written by each source: rows per expert, then its tokens
    arrived      N flags, 32 bytes apart: a source's rows of this epoch have landed
    ready        N flags: a rank's answers of this epoch can be read, or have landed
    x, scale     the experts' rows in the final layout
    y            exact: the experts' answers, read from here by the tokens' ranks
    stage_*      dedup: a place for every token of every rank, and its routing
    partial      dedup: a place for the partial sum of every own token by every rank
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from router.contract.errors import BadSettings

ALIGN_BYTES = 256
FLAG_BYTES = 32
COLUMNS_MULTIPLE = 16
"""A thread takes so many columns of a row."""
MAX_RANKS = 64
MAX_EXPERTS = 512
MAX_TOP_K = 32
MAX_HIDDEN_FP8 = 32768
_COUNT_BYTES = 8
_ROUTE_WORDS = 3
"""Expert, place within the run, weight."""


@dataclass(frozen=True, slots=True)
class PartOffsets:
    """Bytes from the region's begin to what a flight uses."""

    refused: int
    """The same of all flights."""
    counts: int
    arrived: int
    ready: int
    x: int
    scale: int
    y: int
    stage_x: int
    stage_scale: int
    stage_route: int
    partial: int


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """What one rank has to allocate."""

    parts: tuple[PartOffsets, ...]
    """One per flight under way."""
    num_bytes: int


def route_bytes(shape: ExpertShape) -> int:
    """Bytes of a staged token's routing."""
    return -(-_ROUTE_WORDS * 4 * shape.top_k // 16) * 16


def plan_region(shape: ExpertShape, flights: int = 2) -> RegionPlan:
    """The region for `flights` flights under way.

    Raises:
        BadSettings: the kernels cannot serve the shape.
    """
    check_shape(shape)
    end = 0

    def take(num_bytes: int) -> int:
        nonlocal end
        begin, end = end, end + -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
        return begin

    refused = take(FLAG_BYTES)

    def part() -> PartOffsets:
        exact = shape.numerics is ExpertNumerics.EXACT
        rows, staged = shape.capacity_rows, 0 if exact else shape.num_ranks * shape.max_tokens
        number_row, scale_row = shape.hidden_size * shape.dispatch_format.number_bytes, 4 * shape.num_scales
        return PartOffsets(
            refused=refused,
            counts=take(shape.num_ranks * (shape.num_experts + 1) * _COUNT_BYTES),
            arrived=take(shape.num_ranks * FLAG_BYTES),
            ready=take(shape.num_ranks * FLAG_BYTES),
            x=take(rows * number_row),
            scale=take(rows * scale_row),
            y=take(rows * shape.combine_row_bytes),
            stage_x=take(staged * number_row),
            stage_scale=take(staged * scale_row),
            stage_route=take(staged * route_bytes(shape)),
            partial=take(staged * shape.combine_row_bytes),
        )

    return RegionPlan(tuple(part() for _ in range(flights)), end)


def kernel_columns(shape: ExpertShape) -> int:
    """Columns of a row as the kernels count them, in bfloat16: a float32 is two of them, which are moved together."""
    return shape.hidden_size * (2 if shape.combine_format is RowFormat.F32 else 1)


def check_shape(shape: ExpertShape) -> None:
    """The kernels serve this shape.

    Raises:
        BadSettings: a size or format beyond them.
    """
    for name, value, most in (
        ("num_ranks", shape.num_ranks, MAX_RANKS),
        ("num_experts", shape.num_experts, MAX_EXPERTS),
        ("top_k", shape.top_k, MAX_TOP_K),
    ):
        if value > most:
            raise BadSettings(f"Expert setting {name} is {value}; over NVLink it is at most {most}.")
    if kernel_columns(shape) % COLUMNS_MULTIPLE:
        raise BadSettings(
            f"A row of hidden size {shape.hidden_size} is no multiple of {2 * COLUMNS_MULTIPLE} bytes; pad it, or use "
            "another transport."
        )
    if shape.dispatch_format is RowFormat.FP8 and shape.hidden_size > MAX_HIDDEN_FP8:
        raise BadSettings(f"Hidden size {shape.hidden_size} in fp8 is over {MAX_HIDDEN_FP8}; dispatch in bf16.")
    if (shape.dispatch_format is RowFormat.F32) is not (shape.combine_format is RowFormat.F32):
        raise BadSettings("Over NVLink, rows travel in f32 both ways or neither way; choose one format for both.")


def check_room(wanted_bytes: int, free_bytes: int) -> None:
    """The region fits.

    Raises:
        BadSettings: it does not; says how many bytes were wanted.
    """
    if wanted_bytes > free_bytes:
        raise BadSettings(
            f"The expert buffers want {wanted_bytes} bytes ({wanted_bytes / 2**30:.2f} GiB) on each GPU and "
            f"{free_bytes} are free; lower max_tokens, or take dedup numerics, or one flight at a time."
        )
