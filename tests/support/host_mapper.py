"""A Mapper between caches in the host memory of one process."""

from __future__ import annotations

import struct

from router.contract.kv import Region


class HostMapper:
    """Shares an address; `opened` counts the caches that are open."""

    def __init__(self, cache: Region) -> None:
        self._cache = cache
        self.opened: list[int] = []

    def card(self) -> bytes:
        return struct.pack(">Q", self._cache.base)

    def open(self, card: bytes) -> int | None:
        base = int(struct.unpack(">Q", card)[0])
        self.opened.append(base)
        return base

    def close(self, base: int) -> None:
        self.opened.remove(base)
