"""Restarts: sequences whose prompt vLLM shall compute itself, since their KV cache did not come.

vLLM would compute it in the seats that it has, which somebody may still write. So the sequence is asked for anew,
without a hand-over and in blocks of its own; the old one is left, and its seats stay in Quarantine.
"""

from __future__ import annotations

from asyncio import Event


class Restarts:
    """Belongs to the shim's event loop."""

    def __init__(self) -> None:
        self._wanted: dict[str, Event] = {}

    def expect(self, seq_id: str) -> Event:
        """Set as soon as this sequence is to be asked for anew; forget it in the end."""
        return self._wanted.setdefault(seq_id, Event())

    def forget(self, seq_id: str) -> None:
        """The sequence is over."""
        self._wanted.pop(seq_id, None)

    def ask(self, seq_id: str) -> None:
        """The sequence is to be asked for anew; one that is over is not."""
        wanted = self._wanted.get(seq_id)
        if wanted is not None:
            wanted.set()
