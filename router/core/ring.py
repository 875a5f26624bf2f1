"""Ring: consistent hashing.

Each id owns POINTS points of a circle of 48-bit numbers, and a key belongs to the owner of the first point at or after
it. When an id leaves, its keys move to the owners of the next points and all others stay; replicas and worker processes
that see the same ids agree without a word.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from router.contract.ids import InstanceId
from router.core.policies import scramble
from router.core.roster import Roster

POINTS = 128
"""Per id; shares of n ids then differ by about a tenth."""
MAX_RINGS = 64

_LOW = 0xFFFF
_EIGHT = struct.Struct("<8Q")


def key_of(name: bytes) -> int:
    """The place of a key on the circle; its low 16 bits are 0."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") & ~_LOW


def place_of(number: int) -> int:
    """The place of a 32-bit number that is a hash already."""
    return scramble(number) & ~_LOW


def points_of(name: str) -> list[int]:
    """The POINTS places of an id."""
    raw = name.encode()
    return [
        point & ~_LOW
        for number in range(POINTS // 8)
        for point in _EIGHT.unpack(blake2b(raw, digest_size=64, salt=number.to_bytes(2, "little")).digest())
    ]


class Ring:
    """The circle of some ids, which answers with their positions in the sequence that it was made of."""

    __slots__ = ("_num", "_points")

    def __init__(self, points: Sequence[Sequence[int]]) -> None:
        """`points` of each id, from `points_of`; at most 65,536 ids."""
        self._num = len(points)
        # Place and owner in one number: a list of plain numbers is sorted and searched several times as fast.
        self._points = sorted(point | owner for owner, places in enumerate(points) for point in places)

    def owner(self, key: int) -> int:
        """To whom the key belongs."""
        points = self._points
        at = bisect_left(points, key)
        return points[at if at < len(points) else 0] & _LOW

    def owners(self, key: int) -> Iterator[int]:
        """Everybody once, in the order in which they would inherit the key."""
        points, at = self._points, bisect_left(self._points, key)
        seen: set[int] = set()
        for point in (*points[at:], *points[:at]):
            owner = point & _LOW
            if owner not in seen:
                seen.add(owner)
                yield owner
            if len(seen) == self._num:
                return


class Rings:
    """The Ring of each roster, kept for as long as there are not too many."""

    __slots__ = ("_points", "_rings")

    def __init__(self) -> None:
        self._rings: dict[tuple[InstanceId, ...], Ring] = {}
        self._points: dict[InstanceId, list[int]] = {}

    def of(self, members: Roster) -> Ring:
        """The Ring of these members; owners are positions in `members`."""
        ring = self._rings.get(members.ids)
        if ring is None:
            if len(self._rings) >= MAX_RINGS:
                self._rings.clear()
                self._points.clear()
            for name in members.ids:
                if name not in self._points:
                    self._points[name] = points_of(name)
            ring = self._rings[members.ids] = Ring([self._points[name] for name in members.ids])
        return ring
