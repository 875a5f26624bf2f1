"""Chaos: which faults a world meets, and when. All begin in the first seconds and end by themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from engine_shim.simulation.network import Noise

LAST_FAULT_S = 9.0
CHUNK_MOMENTS = ("chunk", "written")
"""A chunk of a prompt has been computed, or a WRITE of it has ended."""
MOMENTS = (
    *("placed", "leg", "registered", "prefilled", "copying", "token", "committed", "cancelled"),
    *("SEATED", "FILLED", "MATCHED", "LANDED", "DRAINING", "VOID"),
)
"""What a fault may wait for: steps of the hand-over, and states of prefill's Rendezvous."""


class FaultKind(StrEnum):
    """What may happen to hosts."""

    KILL = "kill"
    """The process dies and is started anew a little later."""
    LEAVE = "leave"
    """An engine shuts down in good order and is started anew; anything else is killed."""
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
        if self.kind in (FaultKind.KILL, FaultKind.LEAVE, FaultKind.STOP):
            return f"{self.kind} {name}{silently} for {self.for_s:g} s"
        return f"{self.kind} {name} and {self.other}{silently} for {self.for_s:g} s"


def draw_chaos(rng: random.Random, hosts: Sequence[str]) -> tuple[list[Fault], Noise]:
    """The faults of one world, which may be none, and how unkind its network is while they last."""
    faults = [draw_fault(rng, hosts) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4)))]
    if rng.random() < 0.4:
        return [*faults, rng.choice(_PLOTS)(rng, hosts)], Noise(lost=0.05, doubled=0.3, slow=0.5, failing=0.1)
    return faults, _draw_noise(rng)


def draw_fault(rng: random.Random, hosts: Sequence[str]) -> Fault:
    """One fault of any kind, anywhere."""
    host = rng.choice(hosts)
    return Fault(
        kind=rng.choice((FaultKind.KILL, FaultKind.KILL, FaultKind.STOP, FaultKind.STOP, *FaultKind)),
        host=host,
        other=rng.choice([name for name in hosts if name != host]),
        at_s=LAST_FAULT_S * rng.random(),
        for_s=rng.choice((0.02, 0.3, 1.0, 2.0, 4.0, 6.0)),
        moment=rng.choice(MOMENTS) if rng.random() < 0.7 else "",
        follows=rng.random() < 0.6,
        silently=rng.random() < 0.3,
    )


# Plots: faults that rarely come by chance at the one moment in which a rule of the protocol is all that helps.


def _deaf_engine(rng: random.Random, hosts: Sequence[str]) -> Fault:
    """A router's connection to an engine goes half-open just when a leg has come: its end will not be heard there."""
    router = rng.choice([host for host in hosts if host.startswith("r")])
    return Fault(FaultKind.CUT, "p1", router, 8.0 * rng.random(), 3.0, "leg", True, True)


def _quick_rebirth(rng: random.Random, hosts: Sequence[str]) -> Fault:
    """An engine is back before anybody has noticed that it was gone."""
    host = rng.choice([host for host in hosts if host[0] in "pd"])
    return Fault(FaultKind.KILL, host, "store", 8.0 * rng.random(), 0.02, "", False, True)


def _last_words(rng: random.Random, hosts: Sequence[str]) -> Fault:
    """Decode says something and dies; its words arrive when all know of its death."""
    moment = rng.choice(("registered", "cancelled"))
    return Fault(FaultKind.KILL, "d1", "store", 8.0 * rng.random(), rng.choice((0.3, 2.0)), moment, True, True)


def _unheard(rng: random.Random, hosts: Sequence[str]) -> Fault:
    """Prefill has finished and cannot be reached by its router until the attempt has been given up."""
    router = rng.choice([host for host in hosts if host.startswith("r")])
    return Fault(FaultKind.PART, "p1", router, 8.0 * rng.random(), 6.0, "FILLED", True, True)


def _late_tag(rng: random.Random, hosts: Sequence[str]) -> Fault:
    """Prefill dies when all is written; its tag arrives when decode already serves the next attempt."""
    return Fault(FaultKind.KILL, "p1", "store", 8.0 * rng.random(), 3.0, "LANDED", True, False)


def _deaf_in_the_middle(rng: random.Random, hosts: Sequence[str]) -> Fault:
    """Prefill is out of its router's reach from some chunk on, and computes the rest of a prompt that is given up."""
    router = rng.choice([host for host in hosts if host.startswith("r")])
    return Fault(FaultKind.PART, "p1", router, 8.0 * rng.random(), 6.0, "chunk", True, True)


_PLOTS = (_deaf_engine, _quick_rebirth, _last_words, _unheard, _late_tag)


def draw_chunk_faults(rng: random.Random, hosts: Sequence[str]) -> list[Fault]:
    """Faults that wait for chunks: nobody else's moment is as short, or comes as often."""
    faults = [replace(draw_fault(rng, hosts), moment=rng.choice(CHUNK_MOMENTS)) for _ in range(rng.choice((0, 1, 2)))]
    return [*faults, _deaf_in_the_middle(rng, hosts)] if rng.random() < 0.2 else faults


def _draw_noise(rng: random.Random) -> Noise:
    if rng.random() < 0.25:
        return Noise()
    return Noise(
        lost=rng.choice((0.0, 0.05, 0.3)),
        doubled=rng.choice((0.0, 0.3)),
        slow=rng.choice((0.0, 0.05, 0.2, 0.4)),
        tag_lost=rng.choice((0.0, 0.0, 0.1)),
        failing=rng.choice((0.0, 0.1, 0.4)),
    )


QUIET = Noise(lost=0.15, doubled=0.05, fair=True)
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
