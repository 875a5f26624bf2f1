"""FreeRuns: the blocks that hold nothing, kept as maximal runs of neighbouring ids.

Fragmentation is what makes KV transfer slow, since every run of neighbouring blocks is one descriptor. So blocks are
handed out as the smallest run that is long enough, and returned neighbours grow together again.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeRuns:
    """A set of block ids with run-wise removal."""

    def __init__(self, num_blocks: int) -> None:
        """All ids `0 <= block < num_blocks` are in the set."""
        self._length_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []
        """(length, start) in ascending order."""
        self._num_blocks = 0
        if num_blocks:
            self._insert(0, num_blocks)

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def longest(self) -> int:
        """Blocks in the longest run."""
        return self._by_length[-1][0] if self._by_length else 0

    def runs(self) -> list[tuple[int, int]]:
        """All runs as (start, length), by start."""
        return sorted(self._length_at.items())

    def put(self, block: int) -> None:
        """`block`, which was not in the set, is in it."""
        start, length = block, 1
        before = self._start_of_end.get(block)
        if before is not None:
            start, length = before, length + self._remove(before)
        if block + 1 in self._length_at:
            length += self._remove(block + 1)
        self._insert(start, length)

    def take(self, num_blocks: int, after: int | None = None) -> list[int]:
        """`num_blocks` ids leave the set, in as few runs as are at hand.

        Args:
            num_blocks: how many; at most `len(self)`.
            after: a block whose right neighbours are preferred.
        Returns:
            The ids in the order in which a sequence should use them.
        """
        taken: list[int] = []
        if after is not None and after + 1 in self._length_at:
            taken = self._cut(after + 1, num_blocks)
        while len(taken) < num_blocks:
            missing = num_blocks - len(taken)
            at = bisect_left(self._by_length, (missing, -1))
            _, start = self._by_length[min(at, len(self._by_length) - 1)]
            taken += self._cut(start, missing)
        return taken

    def _cut(self, start: int, most: int) -> list[int]:
        """Up to `most` ids from the front of the run at `start` leave the set."""
        length = self._remove(start)
        count = min(length, most)
        if count < length:
            self._insert(start + count, length - count)
        return list(range(start, start + count))

    def _insert(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_of_end[start + length] = start
        insort(self._by_length, (length, start))
        self._num_blocks += length

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_of_end[start + length]
        del self._by_length[bisect_left(self._by_length, (length, start))]
        self._num_blocks -= length
        return length
