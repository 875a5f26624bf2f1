"""FleetWatch: keeps the Router's Fleet as fresh as its sources are.

When a source does not answer, its last sightings stay: engines do not die because the store does. `degraded` says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from router.contract.errors import StoreError
from router.core.fleet import Sighting, fold
from router.driver.router import Router

LOG = logging.getLogger("tandem.router")


class FleetSource(Protocol):
    """The store, or a static list."""

    async def snapshot(self) -> Sequence[Sighting]:
        """Who is there. Raises StoreError when that cannot be known."""


class FleetWatch:
    """Looks at all sources every `period_s` seconds while `run` runs."""

    def __init__(self, router: Router, sources: Sequence[FleetSource], period_s: float) -> None:
        self._router = router
        self._sources = sources
        self._period_s = period_s
        self._seen: list[Sequence[Sighting]] = [() for _ in sources]
        self._failing = [False for _ in sources]
        self.looked_at = monotonic()
        """When all sources last answered."""

    @property
    def degraded(self) -> bool:
        """True while a source does not answer and its last sightings are used."""
        return any(self._failing)

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._period_s)

    async def look(self) -> None:
        """The Router's Fleet is what the sources say now, or last said."""
        await asyncio.gather(*(self._ask(number) for number in range(len(self._sources))))
        if not self.degraded:
            self.looked_at = monotonic()
        seen = (sighting for sightings in self._seen for sighting in sightings)
        self._router.take_fleet(fold(seen, self._router.burdens, monotonic()))

    async def _ask(self, number: int) -> None:
        try:
            self._seen[number] = await self._sources[number].snapshot()
        except StoreError as error:
            if not self._failing[number]:
                LOG.warning("the fleet is served from its last snapshot: %s", error)
            self._failing[number] = True
        else:
            if self._failing[number]:
                LOG.warning("the fleet is fresh again")
            self._failing[number] = False
