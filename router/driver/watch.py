"""FleetWatch: keeps the Router's Fleet as fresh as its sources are.

When a source does not answer, its last sightings stay: engines do not die because the store does. `degraded` says so.
Nor do they all die at once: a store that has lost its memory, or was stopped for longer than all leases, names nobody
until the next heartbeats. So for DOUBT_S after a failure, and after the first answer that names nobody, those whom an
answer misses stay beside those whom it names. Whoever is dead for all that costs an attempt, not a request.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic
from typing import Protocol

from router.contract.engine_hosts import EngineHosts
from router.contract.errors import StoreError
from router.contract.ids import InstanceId
from router.contract.instance import Instance, Load
from router.core.fleet import Sighting, fold
from router.driver.router import Router
from router.driver.screen import Screen
from router.driver.steady import Steady

LOG = logging.getLogger("tandem.router")

DOUBT_S = 3.0
"""Longer than a heartbeat of the shims."""


@dataclass(frozen=True, slots=True)
class _Drained:
    """A sighting of an instance that an operator has drained."""

    instance: Instance
    load: Load
    lease_left_s: float


def _drained(one: Sighting) -> Sighting:
    return _Drained(replace(one.instance, draining=True), one.load, one.lease_left_s)


class FleetSource(Protocol):
    """The store, or a static list."""

    async def snapshot(self) -> Sequence[Sighting]:
        """Who is there. Raises StoreError when that cannot be known."""


class Learner(FleetSource, Protocol):
    """A source that learns from answers who an instance is."""

    def relearn(self, instance: Instance, answer: bytes) -> bool:
        """True when prefill's `answer` shows that `instance` is another start now."""

    def seen(self) -> Sequence[Sighting]:
        """What it knows now."""


class FleetWatch:
    """Looks at all sources every `period_s` seconds while `run` runs."""

    def __init__(
        self,
        router: Router,
        sources: Sequence[FleetSource],
        period_s: float,
        learner: Learner | None = None,
        screen: Screen | None = None,
    ) -> None:
        """`learner` is one of the sources, or None."""
        self.screen = screen or Screen(EngineHosts())
        if learner is not None:
            router.relearn = functools.partial(self._relearn, learner)
        self._router = router
        self._learner = learner
        self._drained: frozenset[InstanceId] = frozenset()
        self._sources = sources
        self._period_s = period_s
        self._seen: list[Sequence[Sighting]] = [() for _ in sources]
        self._failing = [False for _ in sources]
        self._steady = Steady("the watch of the fleet")
        self._named_nobody = [True for _ in sources]
        self._doubted_until = [0.0 for _ in sources]
        self.looked_at = monotonic()
        """When all sources last answered."""

    @property
    def degraded(self) -> bool:
        """True while a source does not answer and its last sightings are used."""
        return any(self._failing) or self._steady.broken

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await self._steady.take(self.look())
            await asyncio.sleep(self._period_s)

    async def look(self) -> None:
        """The Router's Fleet is what the sources say now, or last said."""
        await asyncio.gather(*(self._ask(number) for number in range(len(self._sources))))
        self._router.blind = any(self._failing)
        if not self._router.blind:
            self.looked_at = monotonic()
        self._give()

    def _relearn(self, learner: Learner, instance: Instance, answer: bytes) -> bool:
        if not learner.relearn(instance, answer):
            return False
        self._seen[self._sources.index(learner)] = learner.seen()
        self._give()
        return True

    def drain(self, drained: frozenset[InstanceId]) -> None:
        """These instances, and no others, get no new work because an operator wants it so."""
        self._drained = drained
        self._give()

    def _give(self) -> None:
        seen: Iterable[Sighting] = self.screen.passing(chain.from_iterable(self._seen))
        if self._drained:
            seen = (_drained(one) if one.instance.instance_id in self._drained else one for one in seen)
        self._router.take_fleet(fold(seen, self._router.burdens))

    async def _ask(self, number: int) -> None:
        try:
            named = await self._sources[number].snapshot()
        except StoreError as error:
            self._doubted_until[number] = monotonic() + DOUBT_S
            if not self._failing[number]:
                LOG.warning("the fleet is served from its last snapshot: %s", error)
            self._failing[number] = True
        else:
            if self._failing[number]:
                LOG.warning("the fleet is fresh again")
            self._failing[number] = False
            self._seen[number] = self._believed(number, named)

    def _believed(self, number: int, named: Sequence[Sighting]) -> Sequence[Sighting]:
        """Those whom the source names and, while it is doubted, those whom it has named before.

        Only a store forgets all at once; who looks at each server himself is never doubted.
        """
        if self._sources[number] is self._learner:
            return named
        if not named and not self._named_nobody[number]:
            self._doubted_until[number] = monotonic() + DOUBT_S
        self._named_nobody[number] = not named
        if monotonic() >= self._doubted_until[number]:
            return named
        names = {sighting.instance.instance_id for sighting in named}
        return [*named, *(missed for missed in self._seen[number] if missed.instance.instance_id not in names)]
