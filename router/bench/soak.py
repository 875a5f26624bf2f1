"""Memory over time: one load for long, and the slope of resident memory over its second half."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from router.bench.closed_loop import LoopResult, closed_loop, request_bytes
from router.bench.router_targets import Target

SAMPLES = 60
FLAT_MIB_PER_MINUTE = 0.1


@dataclass(frozen=True, slots=True)
class Soak:
    """What became of one target's memory."""

    target: str
    requests: int
    failures: int
    rss_mib: tuple[float, ...]
    """At equal distances in time."""
    slope_mib_per_minute: float
    """Of the second half; the first fills pools and caches."""

    @property
    def flat(self) -> bool:
        """True when it does not grow."""
        return self.slope_mib_per_minute < FLAT_MIB_PER_MINUTE


async def soak(target: Target, num_connections: int, seconds: float) -> Soak:
    """Load the target for so many seconds, half streams and half whole answers."""
    loads = [
        asyncio.create_task(
            closed_loop(target.port, request_bytes(stream=stream, body_bytes=1024), num_connections // 2, seconds)
        )
        for stream in (False, True)
    ]
    rss: list[float] = []
    for _ in range(SAMPLES):
        await asyncio.sleep(seconds / SAMPLES)
        rss.append(target.rss_mib())
    results: list[LoopResult] = await asyncio.gather(*loads)
    slope = slope_of(rss[SAMPLES // 2 :]) * SAMPLES / seconds * 60
    requests = sum(len(result.latencies_s) for result in results)
    return Soak(target.name, requests, sum(result.failures for result in results), tuple(rss), slope)


def slope_of(values: Sequence[float]) -> float:
    """How much a value grows from one to the next, by least squares."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / sum(
        (at - middle) ** 2 for at in range(len(values))
    )
