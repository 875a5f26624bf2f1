"""Line: requests that wait for admission, in the order in which they should come in.

A smaller priority number goes first, as in vLLM. Among equals callers share by start-time fair queueing (Goyal, Vin and
Cheng 1996): a request starts at the later of the line's virtual time and the virtual end of its caller's last one, and
ends its tokens later; the earliest start is next, and sets the virtual time. So a caller with a thousand requests in
the line delays another's first one by one request, whatever their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

Entry = TypeVar("Entry")

LEAST_HEAP = 64
"""A heap that holds more who have left than who wait, and so many, is made anew: behind better priorities the places of
those who have given up would never come to its top."""


@dataclass(slots=True, order=True)
class _Place(Generic[Entry]):
    priority: int
    start: float
    number: int
    entry: Entry | None = field(compare=False)
    """None when it has left."""


class Line(Generic[Entry]):
    """Entries that wait, each at most once."""

    __slots__ = ("_ends", "_heap", "_now", "_number", "_places")

    def __init__(self) -> None:
        self._heap: list[_Place[Entry]] = []
        self._places: dict[Entry, _Place[Entry]] = {}
        self._ends: dict[str, float] = {}
        """Virtual end of each caller's last request."""
        self._now = 0.0
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    def put(self, entry: Entry, caller: str, tokens: int, priority: int) -> None:
        """`entry` waits; `tokens` are its share of what callers share."""
        start = max(self._now, self._ends.get(caller, 0.0))
        self._ends[caller] = start + tokens
        self._number += 1
        place = _Place(priority, start, self._number, entry)
        self._places[entry] = place
        heappush(self._heap, place)

    def first(self) -> Entry | None:
        """Who is next, or None when nobody waits."""
        heap = self._heap
        while heap and heap[0].entry is None:
            heappop(heap)
        return heap[0].entry if heap else None

    def last(self) -> tuple[int, Entry] | None:
        """Priority and entry of who would be the last, or None when nobody waits. Looks at everybody."""
        place = max(self._places.values(), default=None)
        return (place.priority, place.entry) if place is not None and place.entry is not None else None

    def pop(self) -> None:
        """The first one is out of the line and has come in."""
        entry = self.first()
        if entry is not None:
            self._now = max(self._now, self._heap[0].start)
            self.remove(entry)

    def remove(self, entry: Entry) -> bool:
        """True: the entry was in the line, and is no longer."""
        place = self._places.pop(entry, None)
        if place is None:
            return False
        place.entry = None
        if not self._places:  # nobody is owed anything any more
            self._heap.clear()
            self._ends.clear()
            self._now = 0.0
        elif len(self._heap) > 2 * len(self._places) + LEAST_HEAP:
            self._heap = sorted(self._places.values())  # a sorted list is a heap
        return True
