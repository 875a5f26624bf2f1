"""Chaos: which faults a world meets, and when. All begin in the first seconds and end by themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine_shim.simulation.network import Noise

LAST_FAULT_S = 9.0
MOMENTS = (
    *("placed", "leg", "registered", "prefilled", "copying", "token", "committed", "cancelled"),
    *("SEATED", "FILLED", "MATCHED", "LANDED", "DRAINING", "VOID"),
)
"""What a fault may wait for: steps of the hand-over, and states of prefill's Rendezvous."""


class FaultKind(StrEnum):
    """What may happen to hosts."""

    KILL = "kill"
    """The process dies and is started anew a little later."""
    STOP = "stop"
    """The process stands still and goes on (SIGSTOP, SIGCONT)."""
    CUT = "cut"
    """The connections between two hosts break, with an error or half-open."""
    PART = "part"
    """Nothing passes between two hosts for a while."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its trigger."""

    kind: FaultKind
    host: str
    """Whom it hits, unless the moment says."""
    other: str
    """The other end of a cut or parting."""
    at_s: float
    """When it happens, or from when on it waits for its moment."""
    for_s: float
    moment: str
    """Empty: it does not wait."""
    follows: bool
    """It hits the host where the moment is, if that can be."""
    silently: bool
    """Nobody is told: connections are half-open afterwards; a killed store has lost what it had stored."""

    def describe(self, name: str) -> str:
        """What is done to the host of that name, in words."""
        silently = " silently" if self.silently else ""
        if self.kind in (FaultKind.KILL, FaultKind.STOP):
            return f"{self.kind} {name}{silently} for {self.for_s:g} s"
        return f"{self.kind} {name} and {self.other}{silently} for {self.for_s:g} s"


def draw_faults(rng: random.Random, hosts: Sequence[str]) -> list[Fault]:
    """The faults of one world; one in eight has none."""
    faults = []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4))):
        host = rng.choice(hosts)
        others = [name for name in hosts if name != host]
        faults.append(
            Fault(
                rng.choice((FaultKind.KILL, FaultKind.KILL, FaultKind.STOP, FaultKind.STOP, *FaultKind)),
                host,
                rng.choice(others),
                LAST_FAULT_S * rng.random(),
                rng.choice((0.02, 0.3, 1.0, 2.0, 4.0, 6.0)),
                rng.choice(MOMENTS) if rng.random() < 0.7 else "",
                rng.random() < 0.6,
                rng.random() < 0.3,
            )
        )
    return faults


def draw_noise(rng: random.Random) -> Noise:
    """How unkind the network is while the faults last."""
    if rng.random() < 0.3:
        return Noise()
    return Noise(
        lost=rng.choice((0.0, 0.05, 0.3)),
        doubled=rng.choice((0.0, 0.2)),
        slow=rng.choice((0.0, 0.05, 0.2)),
        tag_lost=rng.choice((0.0, 0.0, 0.1)),
        failing=rng.choice((0.0, 0.1, 0.4)),
    )


QUIET = Noise(lost=0.15, doubled=0.05)
"""When the faults are over, notices may still be lost: they are to be said again."""


class Chaos:
    """Strikes when a fault's time or moment has come."""

    def __init__(self, faults: Sequence[Fault], strike: Callable[[Fault, str], None]) -> None:
        """`strike(fault, host)` makes it happen at that host."""
        self._waiting = [fault for fault in faults if fault.moment]
        self.timed = [fault for fault in faults if not fault.moment]
        self._strike = strike

    def on_moment(self, moment: str, host: str, now: float) -> None:
        """Something is happening at that host."""
        for fault in self._waiting:
            if fault.moment == moment and fault.at_s <= now <= LAST_FAULT_S:
                self._waiting.remove(fault)
                self._strike(fault, host if fault.follows else fault.host)
                return
