"""What `tandem bench transfer` moves: block tables of a chosen fragmentation in caches of two layouts."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine_shim.core.transfer_plan import Side
from engine_shim.fabric.port import CopyOp
from router.contract.errors import BadSettings
from router.contract.kv import BlockTable, KVLayout, KVOrder

BLOCK_TOKENS = 16
HEAD_DIM = 128
DTYPE = "bfloat16"
BLOCK_STEP_BYTES = 2 * BLOCK_TOKENS * HEAD_DIM * 2
"""Bytes of a block of one layer with one KV head; block sizes are multiples of it."""
SPREAD = 2
"""Caches have room for so many times the blocks that move, so that scattered blocks have gaps between them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How one side keeps its cache."""

    order: KVOrder
    block_tokens: int = BLOCK_TOKENS

    def __str__(self) -> str:
        short = self.order.value.removesuffix("_first")
        return short if self.block_tokens == BLOCK_TOKENS else f"{short}/{self.block_tokens}"


@dataclass(frozen=True, slots=True)
class Case:
    """One transfer to time."""

    op: CopyOp
    path: str
    source: Shape
    target: Shape
    num_blocks: int
    """Of BLOCK_TOKENS tokens each."""
    block_bytes: int
    run_blocks: int
    """Neighbouring blocks per run on both sides; 0: all of them in one run."""

    @property
    def num_bytes(self) -> int:
        """Bytes that move."""
        return self.num_blocks * self.block_bytes

    def sides(self) -> tuple[Side, Side]:
        """Source and target, their runs shuffled independently; equal for equal cases."""
        return self._side(self.source, 1), self._side(self.target, 2)

    def _side(self, shape: Shape, seed: int) -> Side:
        num_tokens = self.num_blocks * BLOCK_TOKENS
        wanted = num_tokens // shape.block_tokens
        run = self.run_blocks * BLOCK_TOKENS // shape.block_tokens if self.run_blocks else wanted
        layout = KVLayout(
            num_layers=self.block_bytes // BLOCK_STEP_BYTES,
            num_kv_heads=1,
            head_dim=HEAD_DIM,
            block_tokens=shape.block_tokens,
            num_blocks=SPREAD * wanted,
            dtype=DTYPE,
            order=shape.order,
        )
        return Side(layout, scattered(wanted, max(run, 1), SPREAD * wanted, seed))


def scattered(wanted: int, run: int, num_blocks: int, seed: int) -> BlockTable:
    """`wanted` of `num_blocks` block ids in runs of `run` neighbours, the runs in random order.

    Runs begin at multiples of `run`, and no two follow each other, as far as chance has its way.
    """
    starts = list(range(0, num_blocks - run + 1, run))
    random.Random(seed).shuffle(starts)
    return tuple(block for start in starts for block in range(start, start + run))[:wanted]


def parse_layouts(text: str) -> list[tuple[Shape, Shape]]:
    """`block:block,block:layer,block:block/8` as pairs of Shapes. Raises BadSettings."""
    pairs = []
    for pair in text.split(","):
        left, _, right = pair.strip().partition(":")
        pairs.append((_parse_shape(left), _parse_shape(right or left)))
    return pairs


def _parse_shape(text: str) -> Shape:
    name, _, tokens = text.partition("/")
    orders = {order.value.removesuffix("_first"): order for order in KVOrder}
    if name not in orders or (tokens and tokens not in ("4", "8", "16", "32", "64")):
        raise BadSettings(
            f"--layouts: {text!r} is no layout; write block, layer or head_major, "
            "with /4, /8, /32 or /64 tokens a block."
        )
    return Shape(orders[name], int(tokens or BLOCK_TOKENS))
