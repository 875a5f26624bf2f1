"""Parts: what sequences tell of their prompt's KV while they compute it: what the prefix cache had, then each chunk,
and the last chunk by layers.

Their blocks are pinned as soon as kernels that fill them are launched, and what is there is told of once those have
ended. Where launching runs ahead of computing, a thread of its own waits for that, so that no step does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread

from engine_shim.engine.port import Prefilling, Purpose
from engine_shim.engine.reference.pins import Pins
from engine_shim.engine.reference.sequence import Sequence as Seq

MOST_NOTICES = 8
"""Of layers, in one step."""

Mark = Callable[[], Callable[[], None] | None]
"""See KVCache.mark."""


class Parts:
    """Tells of KV when it is in memory, not earlier, and of everything whose blocks it has pinned."""

    def __init__(self, pins: Pins, mark: Mark, num_layers: int) -> None:
        self._pins, self._mark, self._num_layers = pins, mark, num_layers
        self._untold: list[Prefilling] = []
        self._tell: Callable[[Prefilling], None] = self._untold.append
        self._launched: SimpleQueue[tuple[Callable[[], None], list[Prefilling]] | None] = SimpleQueue()
        self._watcher: Thread | None = None

    def tell_early(self, tell: Callable[[Prefilling], None]) -> None:
        """See Engine.tell_early."""
        self._tell = tell

    def close(self) -> None:
        """The thread, if there is one, ends."""
        self._launched.put(None)

    def during(self, rows: Sequence[tuple[Seq, int]]) -> Callable[[int], None] | None:
        """A step that computes these counts of tokens is about to be launched. Returns what to call in it with the
        number of layers launched; None when nobody wants to know."""
        found = [one for one, _ in rows if one.in_parts and one.num_computed and one.seq_id not in self._pins]
        if found:
            self._launch([_part(one, one.num_computed) for one in found])
        last = [one for one, count in rows if count == one.num_missing and 0 < one.layers_from_tokens <= count]
        if not last:
            return None
        every = -(-self._num_layers // MOST_NOTICES)

        def on_layer(num_layers: int) -> None:
            if num_layers % every == 0 and num_layers < self._num_layers:
                self._launch([_part(one, one.num_prompt_tokens, num_layers) for one in last])

        return on_layer

    def after(self, sequences: Sequence[Seq]) -> list[Prefilling]:
        """A step with these has been launched. Returns what is there, unless it is told early."""
        chunked = [one for one in sequences if one.in_parts and one.num_missing]
        if chunked:
            self._launch([_part(one, one.num_computed) for one in chunked])
        told = self._untold.copy()
        del self._untold[: len(told)]
        return told

    def _launch(self, parts: list[Prefilling]) -> None:
        for part in parts:
            if part.seq_id not in self._pins:
                self._pins.put(part.seq_id, Purpose.HOLD, part.blocks)
        wait = self._mark()
        if wait is None:
            for part in parts:
                self._tell(part)
            return
        if self._watcher is None:
            self._watcher = Thread(target=self._watch, name="tandem-parts", daemon=True)
            self._watcher.start()
        self._launched.put((wait, parts))

    def _watch(self) -> None:
        while (launched := self._launched.get()) is not None:
            wait, parts = launched
            wait()
            for part in parts:
                self._tell(part)


def _part(sequence: Seq, num_tokens: int, num_layers: int = 0) -> Prefilling:
    return Prefilling(sequence.seq_id, tuple(sequence.table), num_tokens, num_layers)
