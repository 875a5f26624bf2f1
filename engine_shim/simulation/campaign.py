"""Campaign: many seeds, over several processes, in order."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from engine_shim.simulation.world import Verdict, World

CHUNK = 50
"""Seeds that one process plays before it reports."""


@dataclass(slots=True)
class Findings:
    """What several seeds have shown together."""

    seeds: int = 0
    requests: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[Verdict] = field(default_factory=list)
    """Seeds that broke a promise, lowest first."""

    def add(self, other: Findings) -> None:
        """What `other` has shown belongs to this as well."""
        self.seeds += other.seeds
        self.requests += other.requests
        self.counts += other.counts
        self.bad += other.bad


def play(first: int, num_seeds: int, off: frozenset[str]) -> Findings:
    """What these seeds show."""
    findings = Findings()
    for seed in range(first, first + num_seeds):
        verdict = World(seed, off).run()
        findings.seeds += 1
        findings.requests += verdict.requests
        findings.counts += verdict.counts
        if verdict.violations:
            findings.bad.append(verdict)
    return findings


def campaign(first: int, num_seeds: int, off: frozenset[str], jobs: int) -> Iterator[Findings]:
    """The findings of all seeds from `first` on, CHUNK seeds at a time and in order, played by `jobs` processes."""
    starts = range(first, first + num_seeds, CHUNK)
    sizes = [min(CHUNK, first + num_seeds - start) for start in starts]
    if jobs == 1:
        yield from (play(start, size, off) for start, size in zip(starts, sizes, strict=True))
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(play, starts, sizes, [off] * len(sizes))
        finally:
            pool.shutdown(cancel_futures=True)
