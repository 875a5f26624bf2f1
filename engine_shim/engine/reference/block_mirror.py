"""BlockMirror: the block tables of running sequences in GPU memory, where kernels read them.

A table of a long sequence has a thousand blocks, and one more every few steps: only what is new is sent. A sequence's
table is a list that only ever grows, so it is known by its identity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from engine_shim.engine.reference.batch import Chunk
from router.contract.kv import BlockTable

Table = BlockTable | list[int]


class BlockMirror:
    """Slots of tables; those of sequences that no longer run are taken by others, the longest unused first."""

    def __init__(self, num_blocks: int, device: torch.device) -> None:
        """No slot yet; a table has at most `num_blocks` blocks."""
        self._num_blocks = num_blocks
        self._device = device
        self._held: OrderedDict[int, tuple[int, Table, int]] = OrderedDict()
        """By the table's identity: its slot, the table itself, and how many of its blocks have been sent."""
        self.tables = torch.zeros((0, num_blocks), dtype=torch.int32, device=device)
        """int32 [slots, num_blocks]"""

    def reserve(self, num_slots: int) -> None:
        """There are at least so many slots. `tables` is another tensor when there were fewer."""
        if num_slots > len(self.tables):
            self._held.clear()
            self.tables = torch.zeros((num_slots, self._num_blocks), dtype=torch.int32, device=self._device)

    def slots_of(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """int64 [chunks] on the GPU: the slots of their tables, which hold all their blocks."""
        self.reserve(len(chunks))
        for chunk in chunks:
            if id(chunk.table) in self._held:
                self._held.move_to_end(id(chunk.table))
        fresh: list[tuple[int, int, int]] = []
        slots = [self._hold(chunk.table, fresh) for chunk in chunks]
        if fresh:
            slot, index, block = self._sent(fresh).unbind(1)
            self.tables[slot, index] = block.int()
        return self._sent(slots)

    def _hold(self, table: Table, fresh: list[tuple[int, int, int]]) -> int:
        """The table's slot; its blocks that were not sent yet join `fresh`."""
        key = id(table)
        if key in self._held:
            slot, _, num_sent = self._held[key]
        else:
            num_held = len(self._held)
            slot, num_sent = num_held if num_held < len(self.tables) else self._held.popitem(last=False)[1][0], 0
        if num_sent < len(table):
            fresh += ((slot, index, table[index]) for index in range(num_sent, len(table)))
        # Held, so that no other table can have the same identity.
        self._held[key] = (slot, table, len(table))
        return slot

    def _sent(self, numbers: Sequence[object]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self._device, non_blocking=True)
