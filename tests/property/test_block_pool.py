"""Any order of owning, sharing, pinning and releasing: no block in use is handed out, and none is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_shim.engine.reference.block_pool import BlockPool

NUM_BLOCKS = 12


class Ownership(RuleBasedStateMachine):
    """The pool beside a plain list of who holds what."""

    @initialize(prefix_cache=st.booleans())
    def start(self, prefix_cache: bool) -> None:
        self.pool = BlockPool(NUM_BLOCKS, prefix_cache=prefix_cache)
        self.tables: list[list[int]] = []
        self.pins: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.num_names = 0

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_available:
            return
        table = self.pool.allocate(count, after=self.tables[-1][-1] if self.tables and self.tables[-1] else None)
        assert len(set(table)) == count
        assert not set(table) & set(self._held())
        for block in table:
            self.content.pop(block, None)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99))
    def remember(self, pick: int) -> None:
        for block in self.tables[pick % len(self.tables)]:
            if block not in self.content:
                self.num_names += 1
                self.content[block] = f"name{self.num_names}".encode()
                self.pool.remember(block, self.content[block])

    @precondition(lambda self: self.content)
    @rule(pick=st.integers(0, 99))
    def share(self, pick: int) -> None:
        block, name = list(self.content.items())[pick % len(self.content)]
        found = self.pool.cached_prefix([name])
        assert found in ([], [block])
        self.pool.share(found)
        self.tables.append(found)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99))
    def pin(self, pick: int) -> None:
        table = self.tables[pick % len(self.tables)]
        self.pool.pin(table)
        self.pins.append(table)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99))
    def release(self, pick: int) -> None:
        self.pool.release(self.tables.pop(pick % len(self.tables)))

    @precondition(lambda self: self.pins)
    @rule(pick=st.integers(0, 99))
    def unpin(self, pick: int) -> None:
        self.pool.unpin(self.pins.pop(pick % len(self.pins)))

    @invariant()
    def counts_are_conserved(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.num_available == NUM_BLOCKS - len(set(self._held()))
            assert self.pool.num_pinned == len({block for table in self.pins for block in table})

    def _held(self) -> Counter[int]:
        return Counter(block for table in self.tables + self.pins for block in table)


TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
