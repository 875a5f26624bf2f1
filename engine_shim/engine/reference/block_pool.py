"""BlockPool: who owns which block of the KV cache.

Where each block is, at any time:

    in `_free`      nobody refers to it, and its content is worthless
    in `_idle`      nobody refers to it, but the prefix cache knows its content; taken when free blocks run out,
                    least recently released first
    owned           `_refs[block]` references: one per sequence whose table names it, one per pin

A pin is a reference that the fabric holds: the block may be read or written from outside until `unpin`. Pins are
counted apart as well, so that the engine can say how many distinct blocks are held.

The prefix cache names a full block by a digest of all tokens up to its end, so equal names mean equal content.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from engine_shim.engine.reference.free_runs import FreeRuns

BlockName = bytes


class BlockPool:
    """Ownership of `num_blocks` blocks."""

    def __init__(self, num_blocks: int, *, prefix_cache: bool = True) -> None:
        """All blocks are free. Without `prefix_cache`, no content is ever remembered."""
        self.num_blocks = num_blocks
        self._remembers = prefix_cache
        self._free = FreeRuns(num_blocks)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._refs: Counter[int] = Counter()
        self._pins: Counter[int] = Counter()
        self._block_of: dict[BlockName, int] = {}
        self._name_of: dict[int, BlockName] = {}
        self._fresh: list[int] = []

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free ones and idle cached ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_pinned(self) -> int:
        """Distinct pinned blocks."""
        return len(self._pins)

    def cached_prefix(self, names: Sequence[BlockName]) -> list[int]:
        """Blocks that hold the longest known prefix of `names`; nothing is taken."""
        return [self._block_of[name] for name in takewhile(self._block_of.__contains__, names)]

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` would leave the available ones by being shared."""
        return sum(block in self._idle for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Each of `blocks`, all owned or idle, has one more reference."""
        for block in blocks:
            self._idle.pop(block, None)
            self._refs[block] += 1

    def allocate(self, num_blocks: int, after: int | None = None) -> list[int]:
        """`num_blocks <= num_available` blocks with one reference each, in few runs, near `after` if that can be."""
        self._forget_idle(num_blocks)
        blocks = self._free.take(num_blocks, after)
        for block in blocks:
            self._refs[block] = 1
        self._fresh += blocks
        return blocks

    def take_fresh(self) -> list[int]:
        """Blocks that have been allocated since the last call; what they hold is of their former owners."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def release(self, blocks: Sequence[int]) -> None:
        """Each of `blocks` has one reference less; the tail of a table is given up first, so prefixes live longest."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            del self._refs[block]
            if block in self._name_of:
                self._idle[block] = None
            else:
                self._free.put(block)

    def pin(self, blocks: Sequence[int]) -> None:
        """Each of `blocks`, all owned, is also held by the fabric."""
        self.share(blocks)
        self._pins.update(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        """One `pin` of these blocks has ended."""
        for block in blocks:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
        self.release(blocks)

    def remember(self, block: int, name: BlockName) -> None:
        """The prefix cache knows the content of `block`, which is owned and full; the first block of a name stays."""
        if self._remembers and block not in self._name_of and name not in self._block_of:
            self._block_of[name] = block
            self._name_of[block] = name

    def _forget_idle(self, num_blocks: int) -> None:
        """Free blocks suffice for `num_blocks`, in one run if as many further evictions can bring that about."""
        spare = num_blocks
        while self._idle and self._free.longest < num_blocks:
            if len(self._free) >= num_blocks:
                spare -= 1
                if spare < 0:
                    return
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._name_of.pop(block)]
            self._free.put(block)
