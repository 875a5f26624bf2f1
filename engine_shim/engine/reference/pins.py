"""Pins: which sequence's blocks the fabric may read or write."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from engine_shim.engine.port import Purpose
from engine_shim.engine.reference.block_pool import BlockPool
from router.contract.kv import BlockTable


@dataclass(frozen=True, slots=True)
class _Pin:
    purpose: Purpose
    table: BlockTable


class Pins:
    """At most one pin per sequence; a pin may outlive its sequence."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._pins: dict[str, _Pin] = {}
        self._quarantined: set[str] = set()
        """Pins whose sequences live and have other blocks."""

    def __contains__(self, seq_id: str) -> bool:
        return seq_id in self._pins

    def put(self, seq_id: str, purpose: Purpose, table: BlockTable) -> None:
        """The blocks of `table`, all owned, are pinned for `seq_id`."""
        self._pool.pin(table)
        self._pins[seq_id] = _Pin(purpose, table)

    def drop(self, seq_id: str) -> bool:
        """`seq_id` has no pin; True when it had one."""
        pin = self._pins.pop(seq_id, None)
        self._quarantined.discard(seq_id)
        if pin is not None:
            self._pool.unpin(pin.table)
        return pin is not None

    def quarantine(self, seq_id: str) -> None:
        """The sequence uses its pinned blocks no more, though others may still write them."""
        if seq_id in self._pins:
            self._quarantined.add(seq_id)

    def num_quarantined(self, live: Container[str]) -> int:
        """Distinct blocks that are pinned as Seats of sequences that are not `live` or have other blocks."""
        given_up = [
            pin.table
            for seq_id, pin in self._pins.items()
            if pin.purpose is Purpose.RECEIVE and (seq_id not in live or seq_id in self._quarantined)
        ]
        return len({block for table in given_up for block in table})
