"""Parts: what sequences that compute their prompt in chunks have told of it so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_shim.engine.port import Prefilling
from engine_shim.engine.reference.pins import Pins
from engine_shim.engine.reference.sequence import Sequence as Seq
from engine_shim.engine.reference.sequence import State


@dataclass(frozen=True, slots=True)
class _Part:
    sequence: Seq
    table: list[int]
    """The sequence's own, so that another one shows that it was preempted meanwhile."""
    num_tokens: int
    is_there: Callable[[], bool]


class Parts:
    """Pins the blocks of a sequence before anybody hears of them, and tells of KV when it is in memory, not earlier."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._computing: deque[_Part] = deque()

    def on_step(self, sequences: Sequence[Seq], mark: Callable[[], Callable[[], bool]]) -> list[Prefilling]:
        """A step has been launched; returns what is new in memory.

        Args:
            sequences: those that took part in it.
            mark: see KVCache.mark; called only when there is something to tell.
        """
        chunked = [one for one in sequences if one.in_parts and one.num_missing]
        if chunked:
            is_there = mark()
            self._computing += [_Part(one, one.table, one.num_computed, is_there) for one in chunked]
        told = []
        while self._computing and self._computing[0].is_there():
            part = self._computing.popleft()
            # One that has ended meanwhile has no part to tell: it is over, or all of it has been told.
            if part.sequence.state is State.RUNNING and part.sequence.table is part.table:
                told.append(self._tell(part))
        return told

    def _tell(self, part: _Part) -> Prefilling:
        sequence = part.sequence
        if sequence.seq_id not in self._pins:
            self._pins.put(sequence.seq_id, sequence.purpose, tuple(sequence.table))
        return Prefilling(sequence.seq_id, tuple(sequence.table), part.num_tokens)
