"""Reaper: ends what routers that are gone have left open.

Every replica runs one. It keeps its own lease, looks whose leases have ended, claims open tickets of those (and tickets
long past their deadline, whoever owns them), tells prefill and decode of each that the attempt is over, and closes it.
What could not be told stays claimed until the claim ends, and then is tried again, by this replica or by another.

Nothing here is awaited by a request. Engines are told side by side, and each of CALLS_AT_ONCE attempts at a time; one
that does not answer costs only its own tickets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Protocol

from router.contract.errors import BadSettings, StoreError
from router.contract.ids import TransferId
from router.contract.ledger import OpenTicket
from router.core.recovery import Owners, closing, reason_of, whom_to_tell
from router.driver.ports import LedgerPort
from router.driver.router import Router
from router.driver.steady import Steady
from router.legs.take_back import TakeBack, result_of, take_back_request

LOG = logging.getLogger("tandem.router")

CALL_S = 3.0
"""Seconds that an engine gets for one call, connecting included."""
RESIGN_S = 1.0
CALLS_AT_ONCE = 8
LOOKS_A_LEASE = 3
TRIES_A_LEASE = 10
"""The same while the store is away."""
LEAST_PAUSE_S = 0.05


class Leased(Protocol):
    """All leases at the moment of a renewal."""

    @property
    def left_s(self) -> Mapping[str, float]:
        """The seconds that each router's lease has left."""

    @property
    def remembered(self) -> bool:
        """The store knew the renewed lease."""


class Claimed(Protocol):
    """What a round of claiming has brought."""

    @property
    def tickets(self) -> tuple[OpenTicket, ...]:
        """Ours to end for a while."""

    @property
    def owners(self) -> frozenset[str]:
        """Whose tickets are open and unclaimed."""

    @property
    def more(self) -> bool:
        """There is probably more."""


class RecoveryPort(Protocol):
    """Leases and claims. Both methods raise StoreError when the store does not answer."""

    async def renew(self, owner: str, lease_for_s: float) -> Leased:
        """Our lease runs on."""

    async def claim(self, gone: Collection[str], claim_for_s: float) -> Claimed:
        """Tickets of these owners, and late ones, are ours for a while."""


class Reaper:
    """Belongs to the Router's event loop."""

    def __init__(self, router: Router, recovery: RecoveryPort, ledger: LedgerPort, lease_for_s: float) -> None:
        self._router = router
        self._recovery = recovery
        self._ledger = ledger
        self._lease_for_s = lease_for_s
        self._owners = Owners(lease_for_s, monotonic())
        self._failing = self._leased = False
        self.reaped: Counter[str] = Counter()
        """Tickets that were closed here, by reason."""
        self.calls: Counter[str] = Counter()
        """Engines that were called, by what came of it."""
        self.held = 0
        """Tickets that were claimed here and are not closed yet: an engine is being told, or could not be."""

    async def run(self) -> None:
        """Look and reap, for ever. Slow engines delay reaping, never the renewal of the lease."""
        async with asyncio.TaskGroup() as tasks:
            reaping: asyncio.Task[None] | None = None
            looks, reaps = Steady("the watch of other routers"), Steady("the reaping of their tickets")
            while True:
                await looks.take(self.look())
                if not self._failing and (reaping is None or reaping.done()):
                    reaping = tasks.create_task(reaps.take(self.reap()))
                await asyncio.sleep(max(self._pause_s(), LEAST_PAUSE_S))

    def _pause_s(self) -> float:
        if self._failing:
            # Our own lease must be seen again well before one lease after the store is back.
            return self._lease_for_s / TRIES_A_LEASE
        # A lease that nobody renews is noticed when it ends, not a pause later.
        return min(self._lease_for_s / LOOKS_A_LEASE, self._owners.next_end_s())

    async def look(self) -> None:
        """Our lease is renewed and all leases are known, or the store is known to be away.

        A store that has forgotten our lease has forgotten others' and our tickets as well; these are opened again.
        """
        try:
            leases = await self._recovery.renew(self._router.conduct.owner, self._lease_for_s)
        except StoreError as error:
            self._lose_sight(error)
            return
        self._failing = False
        self._owners.see(leases.left_s, monotonic())
        if self._leased and not leases.remembered:
            self._owners.lose_sight(monotonic())
            self._router.reopen()
        self._leased = True

    async def resign(self) -> None:
        """Our lease has ended, so that others release at once what could not be closed here."""
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._recovery.renew(self._router.conduct.owner, 0.0)
        except (StoreError, TimeoutError):
            LOG.warning("the lease of this router runs out by itself, since the store does not answer")

    async def reap(self) -> None:
        """What may be claimed has been claimed and, as far as engines could be told, closed."""
        self.held = 0
        deaf: set[str] = set()
        more = True
        while more:
            gone = self._owners.gone(monotonic())
            try:
                claimed = await self._recovery.claim(gone, self._lease_for_s)
            except StoreError as error:
                self._lose_sight(error)
                return
            self._owners.find(claimed.owners, monotonic())
            more = claimed.more
            if claimed.tickets:
                await self._end(claimed.tickets, gone, deaf)

    def _lose_sight(self, error: StoreError) -> None:
        if not self._failing:
            LOG.warning("what other routers leave open is not released while the store is away: %s", error)
        self._failing = True
        self._owners.lose_sight(monotonic())

    async def _end(self, tickets: Sequence[OpenTicket], gone: Collection[str], deaf: set[str]) -> None:
        reasons = {ticket.transfer_id: reason_of(ticket, gone) for ticket in tickets}
        LOG.warning("ending %d open tickets: %s", len(tickets), dict(Counter(reasons.values())))
        self.held += len(tickets)
        untold = await self._tell_all(tickets, reasons, deaf)
        for ticket in tickets:
            reason = reasons[ticket.transfer_id]
            closed = closing(ticket, reason, told=ticket.transfer_id not in untold)
            if closed is not None:
                self.held -= 1
                self.reaped[reason] += 1
                self._ledger.post(closed)

    async def _tell_all(
        self, tickets: Sequence[OpenTicket], reasons: Mapping[TransferId, str], deaf: set[str]
    ) -> set[TransferId]:
        """Those of which an engine could not be told. Engines that fail become `deaf`, and those are not called."""
        instances = {member.instance.instance_id: member.instance for member in self._router.fleet.members}
        by_url: dict[str, list[TransferId]] = {}
        for ticket in tickets:
            for url in whom_to_tell(ticket, instances):
                by_url.setdefault(url, []).append(ticket.transfer_id)
        untold = {transfer_id for url in deaf for transfer_id in by_url.pop(url, ())}
        left = await asyncio.gather(*(self._tell(url, ids, reasons) for url, ids in by_url.items()))
        deaf.update(url for url, ids in zip(by_url, left, strict=True) if ids)
        return untold.union(*left)

    async def _tell(self, url: str, ids: Sequence[TransferId], reasons: Mapping[TransferId, str]) -> set[TransferId]:
        """The attempts of which this engine could not be told; after the first failures it is asked no more."""
        untold = set(ids)
        for start in range(0, len(ids), CALLS_AT_ONCE):
            some = ids[start : start + CALLS_AT_ONCE]
            results = await asyncio.gather(*(self._call(url, one, reasons[one]) for one in some))
            self.calls.update(results)
            untold.difference_update(one for one, result in zip(some, results, strict=True) if result == "told")
            if set(results) != {"told"}:
                LOG.warning("%s cannot be told that %d attempts are over: %s", url, len(untold), dict(Counter(results)))
                break
        return untold

    async def _call(self, url: str, transfer_id: TransferId, reason: str) -> str:
        """What came of telling the engine that this attempt is over."""
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            pool = self._router.pool(url)
        except BadSettings as error:  # whoever registered it chose this URL
            LOG.warning("an engine cannot be told: %s", error)
            return result_of(0)

        def on_end(status: int) -> None:
            if not ended.done():
                ended.set_result(status)

        call = TakeBack(pool, on_end)
        call.send(take_back_request(pool, transfer_id.encode(), reason.encode(), self._router.conduct.seal))
        try:
            async with asyncio.timeout(CALL_S):
                return result_of(await ended)
        except TimeoutError:
            return result_of(0)
        finally:
            if not call.ended:
                call.cancel()
