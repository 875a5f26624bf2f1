"""Scene: what all actors of one world share."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from engine_shim.core.push import PushLimits
from engine_shim.simulation.memory import Memory
from engine_shim.simulation.network import Network
from engine_shim.simulation.story import Invariant, Story, StoryLine, Violation
from engine_shim.simulation.timeline import Timeline
from router.contract.ids import TransferId
from router.core.late import LateChoice


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, seconds: the settings of a deployment, shortened so that a world is soon over."""

    tick_s: float = 0.5
    beat_s: float = 1.0
    fleet_lease_s: float = 3.0
    router_lease_s: float = 4.0
    reap_s: float = 1.3
    doubt_s: float = 3.0
    overdue_s: float = 3.0
    """How long after its deadline an open ticket is overdue."""
    kv_lease_s: float = 5.0
    seat_wait_s: float = 8.0
    tombstone_s: float = 40.0
    kv_wait_s: float = 6.0
    registration_s: float = 6.0
    settle_s: float = 1.0
    connect_s: float = 2.0
    handshake_s: float = 2.0
    recall_s: float = 2.5
    prefill_s: float = 5.0
    first_token_s: float = 8.0
    next_token_s: float = 4.0
    total_s: float = 20.0


@dataclass
class Scene:
    """Time, network, memory, the Story, and which safeguards are switched off."""

    timeline: Timeline
    network: Network
    pace: Pace
    off: frozenset[str]
    num_blocks: int = 10
    """Of each engine's KV cache."""
    chunk_blocks: int = 0
    """Blocks of a prompt that prefill computes before it tells of them; 0: it tells when all are computed."""
    in_layers: bool = False
    """It tells of layers, too, while it computes the last of them."""
    limits: PushLimits = field(default_factory=PushLimits)
    """How pushes are cut."""
    recomputes: bool = False
    """Decode computes a prompt itself whose KV does not come."""
    hedge_after_s: float = inf
    """Routers ask a second pair when a prefill has not answered for so long."""
    returns: bool = False
    """Prefill is told which decode may keep KV of earlier turns, and fetches it."""
    late: LateChoice | None = None
    """When routers choose decode; None: with prefill."""
    memory: Memory = field(default_factory=Memory)
    story: Story = field(default_factory=Story)
    counts: Counter[str] = field(default_factory=Counter)
    """Rows of the tables that were visited, faults, outcomes."""
    on_moment: Callable[[str, str], None] = lambda moment, who: None
    """Told of each moment in which a fault would be interesting, and of the host that it concerns."""
    posted: set[TransferId] = field(default_factory=set)
    """Attempts whose KV somebody has begun to copy."""

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.timeline.now

    @property
    def rng(self) -> random.Random:
        """The one source of chance."""
        return self.timeline.rng

    def tell(self, who: str, what: str, request: str = "") -> None:
        """A line for the Story."""
        self.story.lines.append(StoryLine(self.timeline.now, who, what, request))

    def violate(self, invariant: Invariant, request: str, what: str) -> None:
        """A promise is broken."""
        self.tell("world", f"{invariant}: {what}", request)
        self.story.violations.append(Violation(invariant, request, what, self.timeline.now))
