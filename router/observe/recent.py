"""Recent: the last finished requests of this process, for people who look at one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from router.contract.ledger import Outcome
from router.core.record import Record

KEPT = 512
"""Of each kind; about 1 KiB each."""

_SERVED = Outcome.SERVED


class Recent:
    """Two rings, so that a thousand good answers do not push out the one that failed."""

    __slots__ = ("_others", "_served")

    def __init__(self, kept: int = KEPT) -> None:
        self._served: deque[Record] = deque(maxlen=kept)
        self._others: deque[Record] = deque(maxlen=kept)

    def add(self, record: Record) -> None:
        """The newest one."""
        (self._served if record.outcome is _SERVED else self._others).append(record)

    def newest(self, limit: int, *, failed_only: bool = False) -> list[Record]:
        """At most `limit`, the newest first; with `failed_only` those that were not served."""
        records = self._others if failed_only else (*self._served, *self._others)
        return sorted(records, key=_at, reverse=True)[:limit]

    def find(self, request_id: str) -> Record | None:
        """The one with this id, the client's or ours; the newest of several."""
        return next((r for r in self._all() if request_id in (r.request_id, r.client_id)), None)

    def _all(self) -> Iterator[Record]:
        yield from sorted((*self._served, *self._others), key=_at, reverse=True)


def _at(record: Record) -> float:
    """When it ended."""
    return record.at + record.ended_s
