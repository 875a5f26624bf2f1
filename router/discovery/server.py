"""Server: one server of the fleet, looked at again and again, whichever contract it speaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol

from router.contract.errors import Blame, LegError, LegTimeout
from router.contract.instance import Instance, Load
from router.discovery.entry import Contract, Entry
from router.discovery.vllm import VllmServer
from router.legs.call import call, get_request
from router.legs.pool import LegPool
from router.store.codec import decode_instance

LOG = logging.getLogger("tandem.router")

LEASE_S = 10.0
"""A server that does not answer in time is out of the fleet after so long; one that refuses is out at once."""
POLL_S = 1.0
TIMEOUT_S = 2.0

MakePool = Callable[[str], LegPool]
"""URL -> connections like those of the legs, but not the same: what a leg may do depends on its connection's past."""


@dataclass(frozen=True, slots=True)
class FoundSighting:
    """An instance as it was last seen."""

    instance: Instance
    load: Load
    lease_left_s: float


class Speaker(Protocol):
    """One contract."""

    async def look(self) -> tuple[tuple[Instance, Load], ...]:
        """Who serves there now, one instance for each data-parallel rank; none while it is not ready.

        Raises:
            LegError: it does not say.
        """

    def relearn(self, instance: Instance, answer: bytes) -> bool:
        """True when `answer`, to a prefill, shows that another start of the engine is known from here on."""

    @property
    def found(self) -> tuple[tuple[Instance, Load], ...]:
        """What `look` has last given, or `relearn` made of it."""


class ShimServer:
    """A server with our shim."""

    def __init__(self, pool: LegPool, url: str) -> None:
        """Its instances are at `url`, whatever they say: whoever lists a server decides where prompts go."""
        self._pool = pool
        self._url = url
        self.found: tuple[tuple[Instance, Load], ...] = ()

    async def look(self) -> tuple[tuple[Instance, Load], ...]:
        """Who it says it is. Its load comes from the store where there is one."""
        reply = await call(self._pool, get_request(self._pool, b"/kv/instance"), Blame.DEPLOYMENT, TIMEOUT_S)
        instance = decode_instance(reply.body) if reply.status == 200 else None
        if instance is None:
            raise LegTimeout("It does not say who it is.", side=Blame.DEPLOYMENT, phase="look")
        self.found = ((replace(instance, url=self._url), Load()),)
        return self.found

    def relearn(self, instance: Instance, answer: bytes) -> bool:
        """Never: a shim tells of its own restart."""
        return False


class Server:
    """Keeps what is known of one Entry fresh, while `run` runs."""

    def __init__(self, entry: Entry, make_pool: MakePool) -> None:
        self.entry = entry
        self.looked = asyncio.Event()
        """It has been looked at once."""
        self._pool = make_pool(entry.url)
        self._speaker: Speaker | None = None
        self._seen_at = 0.0
        self._failing = False

    async def run(self) -> None:
        """Look, until cancelled; then no connection is left."""
        try:
            while True:
                await self._look_safely()
                self.looked.set()
                await asyncio.sleep(POLL_S)
        finally:
            self._pool.close()

    async def _look_safely(self) -> None:
        try:
            await self.look()
        except Exception:  # the boundary of this task: a bug costs this server only
            LOG.exception("engine %s cannot be looked at, by a bug", self.entry.url)
            self._seen_at = 0.0

    async def look(self) -> None:
        """What is known is fresh, or its lease runs on, or it is gone."""
        try:
            if self._speaker is None:
                self._speaker = await self._meet()
            found = await self._speaker.look()
        except LegTimeout as error:
            self._note(error.message)  # it may only be busy
        except LegError as error:
            self._note(error.message)
            self._seen_at = 0.0
        else:
            self._seen_at = monotonic() if found else 0.0
            self._note("" if found else "it is not ready")

    async def _meet(self) -> Speaker:
        pool, contract = self._pool, self.entry.contract
        if contract is Contract.AUTO:
            reply = await call(pool, get_request(pool, b"/kv/instance"), Blame.DEPLOYMENT, TIMEOUT_S)
            if reply.status >= 500:
                raise LegTimeout("It is not ready to say who it is.", side=Blame.DEPLOYMENT, phase="look")
            contract = Contract.TANDEM if reply.status == 200 else Contract.VLLM
        if contract is Contract.TANDEM:
            return ShimServer(pool, self.entry.url)
        return VllmServer(self.entry, pool)

    def _note(self, trouble: str) -> None:
        if bool(trouble) is not self._failing:
            self._failing = bool(trouble)
            LOG.warning("engine %s: %s", self.entry.url, trouble or "well again")

    def sightings(self, now: float) -> tuple[FoundSighting, ...]:
        """Its instances, as long as they count. `now` is monotonic seconds."""
        left_s = self._seen_at + LEASE_S - now
        if self._speaker is None or left_s <= 0:
            return ()
        return tuple(FoundSighting(self._marked(instance), load, left_s) for instance, load in self._speaker.found)

    def relearn(self, instance: Instance, answer: bytes) -> bool:
        """See Speaker."""
        return self._speaker is not None and self._speaker.relearn(instance, answer)

    def _marked(self, instance: Instance) -> Instance:
        """The instance with what its entry says beside it."""
        entry = self.entry
        names = dict.fromkeys((*instance.aliases, *entry.aliases))
        names.pop(instance.model, None)
        return replace(
            instance,
            draining=instance.draining or entry.draining,
            aliases=tuple(names),
            zone=entry.zone or instance.zone,
            labels=entry.labels or instance.labels,
            endpoints=entry.endpoints or instance.endpoints,
            lacks=entry.lacks or instance.lacks,
        )
