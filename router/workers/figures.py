"""Figures: the metrics of all workers, whichever of them is asked.

Each worker keeps its figures in a file of its slot, written anew every second and before each answer that contains
them. So whoever is asked needs nobody else to be alive or quick, and no sum that has been shown ever falls: what a
dead worker has counted stays in its file, and the next worker in its slot goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from router.workers.merge import Family, lasting, merge, take

SAVE_EVERY_S = 1.0
FRESH_S = 5.0
"""A worker whose file is older is dead or stopped; it has no gauges."""

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(list[Family]).decode


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker of how many this process is, and the folder that they share and nobody else may enter."""

    folder: Path
    slot: int
    size: int

    def file_of(self, slot: int) -> Path:
        """Where the figures of a slot are."""
        return self.folder / f"figures-{slot}"


class Figures:
    """This worker's view on all. Any thread may call it."""

    def __init__(self, place: Place, collect: Callable[[], Iterable[Metric]]) -> None:
        """`collect` gives this process's own metrics."""
        self._place = place
        self._collect = collect
        self._saving = threading.Lock()
        self._inherited = lasting(self._read(place.slot))

    def save(self) -> None:
        """What this slot has counted so far is in its file."""
        with self._saving:
            families = take(merge((self._inherited, take(self._collect()))))
            path = self._place.file_of(self._place.slot)
            written = path.with_suffix(".new")
            written.write_bytes(_ENCODE(families))
            written.replace(path)

    def render(self) -> bytes:
        """The metrics of all workers in Prometheus' text format."""
        self.save()
        return generate_latest(_Ready(self._merged()))

    @property
    def num_live(self) -> int:
        """Workers that have been alive within the last FRESH_S seconds."""
        return sum(self._is_fresh(slot) for slot in range(self._place.size))

    def _merged(self) -> list[Metric]:
        slots = range(self._place.size)
        workers = GaugeMetricFamily("tandem_workers", "Worker processes that are alive", self.num_live)
        read = ((slot, self._read(slot)) for slot in slots)
        return [*merge(one if self._is_fresh(slot) else lasting(one) for slot, one in read), workers]

    def _is_fresh(self, slot: int) -> bool:
        try:
            return time.time() - self._place.file_of(slot).stat().st_mtime < FRESH_S
        except FileNotFoundError:
            return False  # it has not begun yet

    def _read(self, slot: int) -> list[Family]:
        try:
            return _DECODE(self._place.file_of(slot).read_bytes())
        except FileNotFoundError:
            return []


class _Ready(Collector):
    """Metrics that have been collected already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """They."""
        return self._metrics
