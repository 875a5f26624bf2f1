"""Conduct: how one router carries out requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.contract.seal import Seal
from router.core.breaker import BreakerRules
from router.core.hedging import HedgeRules
from router.core.timing import Deadlines
from router.legs.access import EngineAccess
from router.legs.pool import PoolLimits


@dataclass(frozen=True, slots=True)
class Conduct:
    """How requests are carried out, from the settings."""

    deadlines: Deadlines = field(default_factory=Deadlines)
    pool: PoolLimits = field(default_factory=PoolLimits)
    access: EngineAccess = field(default_factory=EngineAccess)
    """Keys of engines, and TLS to them."""
    attempts: int = 2
    """At most so many per request, the first included."""
    cancels_prefill: bool = True
    """False for engines that strand decode's blocks when a prefill leg is cancelled: it is left to finish."""
    owner: str = "router"
    """This replica, as tickets name it."""
    seal: Seal = field(default_factory=Seal)
    """Proves to shims that what they are told comes from their own deployment."""
    breaker: BreakerRules = field(default_factory=BreakerRules)
    retry_share: float = 0.2
    """At most so many retries per request, on average."""
    retry_floor_per_s: float = 1.0
    """So many retries per second may go all the same."""
    vllm_lease_s: float = 30.0
    """For so long plain vLLM keeps a finished prompt's KV; 0: its leases are not watched."""
    hedge: HedgeRules = field(default_factory=HedgeRules)
