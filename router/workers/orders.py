"""What operators have ordered, in a file, for the workers behind one port that have no store."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from router.contract.errors import StoreDown


class OrderFile:
    """The orders in one folder, which only its workers may enter."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "orders.json"
        self._lock = folder / "orders.lock"

    async def give(self, name: str, value: str) -> None:
        """The order holds for all workers; an empty value withdraws it.

        Raises:
            StoreDown: the file cannot be written.
        """
        try:
            with self._lock.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # held for as long as writing a few hundred bytes takes
                orders = self._read() | {name: value}
                fresh = self._path.with_suffix(".new")
                fresh.write_text(json.dumps({key: one for key, one in orders.items() if one}), "utf-8")
                fresh.replace(self._path)
        except OSError as error:
            raise StoreDown(f"Orders cannot be shared with the other workers: {error}.") from error

    async def read(self) -> tuple[str, dict[str, str]]:
        """Nothing, since a file loses nothing, and all orders by name."""
        return "", self._read()

    def _read(self) -> dict[str, str]:
        try:
            orders: dict[str, str] = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return orders
