"""What operators have ordered, in Redis, for all routers of a namespace."""

from __future__ import annotations

from uuid import uuid4

from router.store import keys
from router.store.connection import StoreClient
from router.store.scripts import read_script

KEEP_S = 7 * 86400
"""Seconds that orders are kept after the last router has read them."""

_SINCE = "#since"

_ORDER = read_script("order")
_ORDERS = read_script("orders")


class OrderStore:
    """The orders of one namespace. Every method raises StoreDown when Redis does not answer."""

    def __init__(self, redis: StoreClient, namespace: str) -> None:
        self._redis = redis
        self._keys = (keys.fleet_orders(namespace),)

    async def give(self, name: str, value: str) -> None:
        """The order holds for everybody; an empty value withdraws it."""
        await _ORDER.run(self._redis, self._keys, name, value, KEEP_S * 1000, uuid4().hex)

    async def read(self) -> tuple[str, dict[str, str]]:
        """Since when the store remembers orders (a word that changes when it has lost them), and all orders by name."""
        flat = await _ORDERS.run(self._redis, self._keys, KEEP_S * 1000)
        orders = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
        return orders.pop(_SINCE, ""), orders
