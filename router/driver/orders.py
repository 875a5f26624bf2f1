"""Orders: what operators have told the routers to do, in force here and, where they share a place, everywhere.

    drain ID    instance ID gets no new work, until it is undrained, whatever starts at its address meanwhile
    mode        requests are placed in this mode instead of the configured one

An order is in force here at once. While the shared place does not answer, it is kept here and written when it does; a
place that has lost its memory is told again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from router.contract.errors import StoreError
from router.contract.ids import InstanceId
from router.driver.steady import Steady

LOG = logging.getLogger("tandem.router")

PERIOD_S = 1.0
MODE = "mode"
_DRAIN = "drain "


class OrderPlace(Protocol):
    """Where orders are shared. Every method raises StoreError when it does not answer."""

    async def give(self, name: str, value: str) -> None:
        """The order holds for everybody; an empty value withdraws it."""

    async def read(self) -> tuple[str, Mapping[str, str]]:
        """Since when the place remembers, a word that changes when it has lost what it was told; all orders by name."""


Obey = Callable[[frozenset[InstanceId], str], None]
"""Called with who is drained and the ordered mode (empty: none) whenever one of them has changed."""


class Orders:
    """Belongs to the event loop of its router."""

    def __init__(self, place: OrderPlace | None, obey: Obey) -> None:
        """Without a place orders hold for this process."""
        self._place = place
        self._obey = obey
        self._orders: dict[str, str] = {}
        self._untold: dict[str, str] = {}
        self._since = ""

    @property
    def drained(self) -> frozenset[InstanceId]:
        """Who gets no new work."""
        return frozenset(InstanceId(name.removeprefix(_DRAIN)) for name in self._orders if name.startswith(_DRAIN))

    @property
    def mode(self) -> str:
        """The ordered mode, or empty."""
        return self._orders.get(MODE, "")

    async def drain(self, instance_id: InstanceId, *, draining: bool) -> bool:
        """The instance gets no new work, or does again. True when all routers will know, False: this one only."""
        return await self._give(_DRAIN + instance_id, "1" if draining else "")

    async def set_mode(self, mode: str) -> bool:
        """Requests are placed in this mode; empty: in the configured one. Returns as `drain`."""
        return await self._give(MODE, mode)

    async def run(self) -> None:
        """Look, for ever."""
        steady = Steady("the reading of orders")
        while self._place is not None:
            await steady.take(self.look())
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """What others have ordered is in force, and what they could not be told before they are told."""
        if self._place is None:
            return
        try:
            since, shared = await self._place.read()
            if since != self._since:  # it has lost them, unless these are our first ones, or its first
                self._untold = {**self._orders, **self._untold}
            if self._untold:
                await self._tell(self._place)
                since, shared = await self._place.read()
        except StoreError:
            return  # the fleet's own watch says so already
        self._since = since
        self._take({name: value for name, value in {**shared, **self._untold}.items() if value})

    async def _tell(self, place: OrderPlace) -> None:
        for name, value in tuple(self._untold.items()):
            await place.give(name, value)
            if self._untold.get(name) == value:
                del self._untold[name]

    async def _give(self, name: str, value: str) -> bool:
        LOG.warning("ordered: %s%s", name, f" {value}" if value else ", withdrawn")
        self._untold[name] = value
        self._take({key: one for key, one in {**self._orders, name: value}.items() if one})
        await self.look()
        return self._place is not None and name not in self._untold

    def _take(self, orders: dict[str, str]) -> None:
        before = self.drained, self.mode
        self._orders = orders
        if (self.drained, self.mode) != before:
            self._obey(self.drained, self.mode)
