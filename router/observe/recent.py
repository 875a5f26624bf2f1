"""Recent: the last finished requests, for people who look at one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

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
        return newest_of(self._others if failed_only else (*self._served, *self._others))[:limit]

    def find(self, request_id: str) -> Record | None:
        """The one with this id, the client's or ours; the newest of several."""
        records = newest_of((*self._served, *self._others))
        return next((r for r in records if request_id in (r.request_id, r.client_id)), None)


class Records(Protocol):
    """The last finished requests of the router behind this port, of one process or of several."""

    async def newest(self, limit: int, *, failed_only: bool = False) -> list[Record]:
        """At most `limit`, the newest first; with `failed_only` those that were not served."""

    async def find(self, request_id: str) -> Record | None:
        """The one with this id, the client's or ours; the newest of several."""


class OwnRecords:
    """Those of this process. See Records."""

    def __init__(self, recent: Recent, settle: Callable[[], None]) -> None:
        """After `settle`, everything that has ended is in `recent`."""
        self._recent = recent
        self._settle = settle

    async def newest(self, limit: int, *, failed_only: bool = False) -> list[Record]:
        """See Records."""
        self._settle()
        return self._recent.newest(limit, failed_only=failed_only)

    async def find(self, request_id: str) -> Record | None:
        """See Records."""
        self._settle()
        return self._recent.find(request_id)


def newest_of(records: Iterable[Record]) -> list[Record]:
    """All of them, the newest first."""
    return sorted(records, key=_at, reverse=True)


def _at(record: Record) -> float:
    """When it ended."""
    return record.at + record.ended_s
