"""How many open streams a router holds: more and more of them, until tokens come late.

Late is a read of a stream that comes LATE_S after the engine's own pace, in more than one of a hundred. The engines and
the load have a core of their own, which `direct` shows to be quick enough, or not.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.bench.closed_loop import closed_loop, request_bytes
from router.bench.router_targets import Target

FIRST = 100
GROWTH = 1.25
LATE_S = 0.05


@dataclass(frozen=True, slots=True)
class Held:
    """What one target holds."""

    target: str
    streams: int
    """The most that it has held without falling behind; 0 when FIRST were too many."""
    late_ms: float
    """p99 of the lateness there."""
    cpu_share: float
    """Of one core there; 0 for `direct`."""


async def hold(target: Target, tokens_per_s: float, seconds: float, most: int) -> Held:
    """The most streams, up to `most`, that the target holds at so many tokens/s each; each step takes `seconds`."""
    held = Held(target.name, 0, 0.0, 0.0)
    streams = FIRST
    while streams <= most:
        late_s, share = await _late_s(target, streams, tokens_per_s, seconds)
        if late_s > LATE_S:
            break
        held = Held(target.name, streams, late_s * 1000, share)
        streams = round(streams * GROWTH)
    return held


async def _late_s(target: Target, streams: int, tokens_per_s: float, seconds: float) -> tuple[float, float]:
    request = request_bytes(stream=True, body_bytes=1024)
    before = target.cpu_s()
    result = await closed_loop(target.port, request, streams, seconds, keeps_gaps=True)
    late = sorted(gap_s - 1 / tokens_per_s for gap_s in result.gaps_s)
    starved = result.failures or len(late) < streams * seconds * tokens_per_s / 2
    share = (target.cpu_s() - before) / result.seconds
    return (float("inf") if starved else late[len(late) * 99 // 100]), share
