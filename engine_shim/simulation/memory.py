"""Blocks and the copies between them: the world's own view of who may touch what.

Engines believe what their desks tell them; the world knows. A Block remembers its owner and what it holds, and a Copy
knows, piece by piece, which blocks it still touches. Whoever frees or overwrites wrongly is caught in the act.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from router.contract.ids import TransferId

Content = tuple[TransferId, int]
"""KV of which attempt, and which block of its prompt."""
ALL_LAYERS = range(3)


class BlockPool:
    """The KV cache of one engine."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self.owner: dict[int, TransferId] = {}
        self._cached: dict[Content, int] = {}
        self._names: dict[int, Content] = {}
        """The prefix cache: what the engine believes to be in blocks, and each block's entry there."""
        self._holds: dict[tuple[int, int], Content] = {}
        """What was last written to a layer of a block, which keeps it when it is freed, as memory does."""

    @property
    def num_taken(self) -> int:
        """Blocks that belong to somebody."""
        return len(self.owner)

    def take(self, num_blocks: int, owner: TransferId) -> tuple[int, ...] | None:
        """That many blocks, which belong to `owner` from here on; None when there are not enough.

        The block that was freed last is taken first, so that one freed too early is soon in other hands.
        """
        if len(self._free) < num_blocks:
            return None
        # What is cached goes last.
        self._free.sort(key=lambda block: block not in self._names)
        taken = tuple(self._free.pop() for _ in range(num_blocks))
        for block in taken:
            self.owner[block] = owner
            self.forget(block)
        return taken

    def remember(self, block: int, content: Content) -> None:
        """From here on the engine believes that `content` is in this block."""
        self.forget(block)
        self.forget(self._cached.get(content, -1))
        self._cached[content], self._names[block] = block, content

    def forget(self, block: int) -> None:
        """This block is not in the prefix cache."""
        self._cached.pop(self._names.pop(block, (TransferId(""), -1)), None)

    def find_cached(self, text: TransferId, most_blocks: int) -> tuple[int, ...]:
        """Blocks with the beginning of this text that belong to nobody, at most so many."""
        found: list[int] = []
        while len(found) < most_blocks:
            block = self._cached.get((text, len(found)))
            if block is None or block in self.owner:
                break
            found.append(block)
        return tuple(found)

    def take_cached(self, blocks: tuple[int, ...], owner: TransferId) -> None:
        """These blocks, which `find_cached` has found, belong to `owner` from here on."""
        for block in blocks:
            self._free.remove(block)
            self.owner[block] = owner

    def held(self, block: int, layers: range = ALL_LAYERS) -> list[Content | None]:
        """What is in these layers of the block."""
        return [self._holds.get((block, layer)) for layer in layers]

    def put(self, block: int, contents: Iterable[Content], layers: range = ALL_LAYERS) -> None:
        """These layers of the block hold this, in order."""
        self._holds.update(((block, layer), content) for layer, content in zip(layers, contents, strict=True))

    def give(self, blocks: Iterable[int]) -> None:
        """The blocks belong to nobody; what was free already stays so."""
        for block in blocks:
            if self.owner.pop(block, None) is not None:
                self._free.append(block)


@dataclass(eq=False, slots=True)
class Copy:
    """One posted WRITE or READ, as the memory sees it."""

    transfer_id: TransferId
    source: BlockPool | None
    """None once all that will land has left prefill's blocks."""
    target: BlockPool
    pieces: list[tuple[int, int]]
    """(block of prefill, block of decode) that have not been copied yet."""


@dataclass(slots=True)
class Memory:
    """All copies that are under way."""

    live: dict[Copy, None] = field(default_factory=dict)
    """In the order in which they were posted."""

    def reads(self, pool: BlockPool, blocks: Iterable[int]) -> Copy | None:
        """A copy that still reads one of these blocks."""
        wanted = set(blocks)
        return next((c for c in self._of(pool, True) if any(p[0] in wanted for p in c.pieces)), None)

    def writes(self, pool: BlockPool, blocks: Iterable[int]) -> Copy | None:
        """A copy that still writes one of these blocks."""
        wanted = set(blocks)
        return next((c for c in self._of(pool, False) if any(p[1] in wanted for p in c.pieces)), None)

    def _of(self, pool: BlockPool, as_source: bool) -> list[Copy]:
        return [copy for copy in self.live if (copy.source if as_source else copy.target) is pool]
