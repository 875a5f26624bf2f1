"""Recovery: which routers are gone, and what is to become of a ticket that its owner will not close.

A router is gone when its lease has ended. Two things look like that and are not:

    the store was away      leases ran out while nobody could renew: after an absence of the store, and at the start,
                            everybody gets one whole lease to be seen again before any ended one counts
    we were away            the same after this process has slept: what froze it may have frozen the others as well
    the store forgot        a lease is not there at all (an empty server, a failover): its owner is gone only when it
                            has been missing for one whole lease, in which a live one would have renewed thrice

An instance that is not in the fleet any more, or is there with a newer epoch, holds nothing of an older attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from router.contract.ids import Epoch, InstanceId
from router.contract.instance import Instance
from router.contract.ledger import Closed, OpenTicket, Outcome

GIVE_UP_S = 60.0
"""Seconds after its deadline from which a ticket is closed though an engine cannot be told: its own ones are over."""

NAP_OF_A_LEASE = 0.6
"""Looks that are so far apart mean that we slept; a lease of which a third had gone at the last look holds longer."""

OWNER_GONE, OVERDUE = "owner_gone", "overdue"


class Owners:
    """Whose leases have ended, as one router sees it. Times are monotonic seconds."""

    def __init__(self, lease_for_s: float, now: float) -> None:
        self._lease_for_s = lease_for_s
        self._seen_since = self._seen_at = now
        self._left: Mapping[str, float] = {}
        self._missing_since: dict[str, float] = {}

    def lose_sight(self, now: float) -> None:
        """The store is away, or has lost what it held: nobody is gone before one whole lease after this."""
        self._seen_since = self._seen_at = now

    def see(self, left_s: Mapping[str, float], now: float) -> None:
        """These are the leases of all known routers, with the seconds that each has left."""
        if now - self._seen_at >= NAP_OF_A_LEASE * self._lease_for_s:
            self.lose_sight(now)
        self._seen_at = now
        self._left = left_s
        self._missing_since = {owner: at for owner, at in self._missing_since.items() if owner not in left_s}

    def find(self, owners: Collection[str], now: float) -> None:
        """These owners have open tickets; those without a lease are watched from here on."""
        missing = [owner for owner in owners if owner not in self._left]
        self._missing_since = {owner: self._missing_since.get(owner, now) for owner in missing}

    def gone(self, now: float) -> frozenset[str]:
        """Those whose tickets are anybody's."""
        if now - self._seen_since < self._lease_for_s:
            return frozenset()
        ended = {owner for owner, left_s in self._left.items() if left_s <= 0}
        lost = {owner for owner, since in self._missing_since.items() if now - since >= self._lease_for_s}
        return frozenset(ended | lost)

    def next_end_s(self) -> float:
        """Seconds from the last `see` until the next lease ends unless it is renewed."""
        return min((left_s for left_s in self._left.values() if left_s > 0), default=self._lease_for_s)


def whom_to_tell(ticket: OpenTicket, instances: Mapping[InstanceId, Instance]) -> tuple[str, ...]:
    """URLs of the instances that may still hold something of this attempt and can be told that it is over."""
    sides: Iterable[tuple[InstanceId | None, Epoch]] = (
        (ticket.prefill, ticket.prefill_epoch),
        (ticket.decode, ticket.decode_epoch),
    )
    urls = []
    for instance_id, epoch in sides:
        instance = instances.get(instance_id) if instance_id is not None else None
        if instance is None or instance.epoch > epoch or instance.kv is None or not instance.kv.takes_back:
            continue
        urls.append(instance.url)
    return tuple(dict.fromkeys(urls))


def reason_of(ticket: OpenTicket, gone: Collection[str]) -> str:
    """Why this ticket is ended by somebody else than its owner."""
    return OWNER_GONE if ticket.owner in gone else OVERDUE


def closing(ticket: OpenTicket, reason: str, *, told: bool) -> Closed | None:
    """The entry that ends this ticket, or None while an engine that can be told has not been."""
    if told:
        return Closed(ticket.transfer_id, Outcome.ABANDONED, reason)
    if ticket.overdue_s >= GIVE_UP_S:
        return Closed(ticket.transfer_id, Outcome.ABANDONED, f"{reason}, not every engine could be told")
    return None
