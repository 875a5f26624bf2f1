"""What is done to the processes of a chaos run, and in which phase of a request.

A phase lasts some milliseconds, so it is brought about: its peer is frozen until the metrics show that requests have
got into the phase and stay there; then the victim is hurt and the peer goes on.

    starting    prompts wait for their prefill; nothing is registered yet           nobody is frozen
    seated      decode has registered its seats, prefill has not finished          prefill is frozen
    filled      prefill has finished, and no registration has come                 decode is frozen
    matched     the WRITE is posted and cannot end                                 decode is frozen
    decoding    tokens flow                                                        nobody is frozen
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from tests.support.chaos_load import ChaosLoad
from tests.support.chaos_process import Victim
from tests.support.chaos_site import LEASE_S, ChaosSite

PHASE_WITHIN_S = 1.5
"""Below the fleet's lease, so that the frozen peer does not lose it."""
FREEZE_S = LEASE_S + 1.5
SILENCE_S = 3.0
DOWN_S = 0.7


class Phase(StrEnum):
    """Where in its life a request is hit."""

    ANY = "any"
    STARTING = "starting"
    SEATED = "seated"
    FILLED = "filled"
    MATCHED = "matched"
    DECODING = "decoding"


class Kind(StrEnum):
    """What is done."""

    KILL = "kill"
    END = "sigterm"
    FREEZE = "freeze"
    SILENCE = "half-open"
    RESET = "reset"
    FULL_DISK = "full disk"
    BURST = "burst"
    FAIL_OVER = "failover"


@dataclass(frozen=True)
class Hurt:
    """One card of the deck."""

    kind: Kind
    role: str
    phase: Phase = Phase.ANY


@dataclass
class Inflicted:
    """A Hurt that has happened."""

    hurt: Hurt
    victim: str
    at: float
    """Monotonic seconds."""
    unix_at: float
    reached: bool
    """The wanted phase was seen."""
    well_after_s: float = float("nan")
    """Until the victim served again, its own time of being down or frozen included."""


PHASES = (Phase.STARTING, Phase.SEATED, Phase.FILLED, Phase.MATCHED, Phase.DECODING)
ROLES = ("prefill", "decode", "router")


def deck(rng: random.Random, *, watched: bool = False) -> list[Hurt]:
    """Every kind, with every phase for kills, in random order; a `watched` store fails over and is not hurt else."""
    cards = [Hurt(Kind.KILL, role, phase) for role in ROLES for phase in PHASES]
    cards += [Hurt(Kind.END, role) for role in ROLES]
    cards += [Hurt(Kind.FREEZE, role) for role in (*ROLES, "store")]
    cards += [
        Hurt(Kind.FREEZE, role, phase) for role in ("prefill", "decode") for phase in (Phase.SEATED, Phase.MATCHED)
    ]
    cards += [Hurt(kind, role) for kind in (Kind.SILENCE, Kind.RESET) for role in ("prefill", "decode", "store")]
    cards += [Hurt(Kind.FULL_DISK, role) for role in ROLES]
    cards += [Hurt(Kind.KILL, "store"), Hurt(Kind.BURST, "router")]
    if watched:
        cards = [card for card in cards if card.role != "store"] + [Hurt(Kind.FAIL_OVER, "store")] * 4
    rng.shuffle(cards)
    return cards


class Tormentor:
    """Hurts one process after the other while the load runs."""

    def __init__(self, site: ChaosSite, load: ChaosLoad, seed: int) -> None:
        self._site, self._load = site, load
        self._rng = random.Random(seed)
        self._healing: set[asyncio.Task[None]] = set()
        self.inflicted: list[Inflicted] = []

    async def run(self, every_s: float) -> None:
        """Go on until cancelled. No role has more than one hurt process at a time, so pairs survive."""
        cards: list[Hurt] = []
        while True:
            await asyncio.sleep(every_s * self._rng.uniform(0.7, 1.3))
            self._raise_failures()
            cards = cards or deck(self._rng, watched=self._site.pair is not None)
            ready = next((card for card in cards if self._may(card)), None)
            if ready is not None:
                cards.remove(ready)
                await self._inflict(ready)

    async def heal(self) -> None:
        """Everybody who was hurt is well again. Raises what went wrong."""
        while self._healing:
            await asyncio.wait(self._healing)
            self._raise_failures()

    def _raise_failures(self) -> None:
        for task in [task for task in self._healing if task.done()]:
            self._healing.discard(task)
            task.result()

    def _may(self, hurt: Hurt) -> bool:
        if hurt.role == "store":
            return self._site.store.is_well
        return all(victim.is_well for victim in self._site.of_role(hurt.role)) and self._site.store.is_well

    async def _inflict(self, hurt: Hurt) -> None:
        if hurt.role == "store":
            done = Inflicted(hurt, "store", time.monotonic(), time.time(), True)
            self._keep(done, self._hurt_store(hurt.kind))
            return
        victim = self._rng.choice(self._site.of_role(hurt.role))
        async with self._phase(hurt, victim) as reached:
            victim.is_well = False
            done = Inflicted(hurt, victim.name, time.monotonic(), time.time(), reached)
            self._keep(done, self._hurt(hurt, victim))
            await asyncio.sleep(0.02)

    def _keep(self, done: Inflicted, hurting: Coroutine[object, object, None]) -> None:
        async def follow() -> None:
            await hurting
            done.well_after_s = time.monotonic() - done.at

        self.inflicted.append(done)
        self._healing.add(asyncio.create_task(follow()))

    async def _hurt(self, hurt: Hurt, victim: Victim) -> None:
        match hurt.kind:
            case Kind.KILL:
                victim.kill()
                await asyncio.sleep(DOWN_S)
                victim.start()
            case Kind.END:
                await asyncio.to_thread(victim.stop)
                victim.start()
            case Kind.FREEZE:
                victim.freeze()
                await asyncio.sleep(FREEZE_S)
                victim.thaw()
            case Kind.SILENCE if victim.proxy is not None:
                victim.proxy.fall_silent()
                await asyncio.sleep(SILENCE_S)
                victim.proxy.heal(reset=self._rng.random() < 0.5)
            case Kind.RESET if victim.proxy is not None:
                victim.proxy.reset()
            case Kind.FULL_DISK:
                victim.fill_disk(full=True)
                await asyncio.sleep(SILENCE_S)
                victim.fill_disk(full=False)
            case Kind.BURST:
                await asyncio.gather(*(self._load.send(victim) for _ in range(80)))
        await self._site.wait_well(victim)

    async def _hurt_store(self, kind: Kind) -> None:
        site = self._site
        site.store.is_well = False
        if kind is Kind.FAIL_OVER:
            assert site.pair is not None
            async with asyncio.timeout(60):
                await site.pair.fail_over()
        elif kind is Kind.KILL:
            site.store_proxy.refuse()
            site.store.kill()
            site.store_proxy.reset()
            await asyncio.sleep(DOWN_S)
            site.store.start()
            await site.store_proxy.listen()
        elif kind is Kind.FREEZE:
            site.store.freeze()
            await asyncio.sleep(FREEZE_S)
            site.store.thaw()
        elif kind is Kind.SILENCE:
            site.store_proxy.fall_silent()
            await asyncio.sleep(SILENCE_S)
            site.store_proxy.heal(reset=self._rng.random() < 0.5)
        else:
            site.store_proxy.reset()
        await asyncio.gather(*(site.wait_well(victim) for victim in site.victims.values() if victim.is_well))
        site.store.is_well = True

    @asynccontextmanager
    async def _phase(self, hurt: Hurt, victim: Victim) -> AsyncIterator[bool]:
        """Requests of `victim` are in the phase, if that could be brought about; gives whether it was seen."""
        phase = hurt.phase
        prefill = victim if victim.role == "prefill" else self._rng.choice(self._site.of_role("prefill"))
        decode = victim if victim.role == "decode" else self._rng.choice(self._site.of_role("decode"))
        frozen = {Phase.SEATED: prefill, Phase.FILLED: decode, Phase.MATCHED: decode}.get(phase)
        if frozen is not None and not all(other.is_well for other in self._site.of_role(frozen.role)):
            frozen = None  # it may be the last of its role: nobody could serve then
        seen_at, metric = {
            Phase.STARTING: (prefill, "queued_prompt_tokens"),
            Phase.SEATED: (decode, "parked_seqs"),
            Phase.FILLED: (prefill, "held_blocks"),
            Phase.MATCHED: (prefill, "live_transfers"),
            Phase.DECODING: (decode, "running_seqs"),
        }.get(phase, (None, ""))
        if frozen is not None:
            frozen.freeze()
        try:
            yield seen_at is None or await self._seen(seen_at, metric)
        finally:
            stays_frozen = frozen is victim and hurt.kind is Kind.FREEZE and not victim.is_well
            if frozen is not None and not stays_frozen:
                frozen.thaw()

    async def _seen(self, at: Victim, metric: str) -> bool:
        """The metric is above zero twice in a row, within PHASE_WITHIN_S."""
        ends_at, times = time.monotonic() + PHASE_WITHIN_S, 0
        while time.monotonic() < ends_at:
            times = times + 1 if (await self._site.metrics(at)).get(metric, 0.0) > 0 else 0
            if times == 2:
                return True
            await asyncio.sleep(0.015)
        return False
