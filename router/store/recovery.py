"""What routers tell each other through Redis so that one can end what another has left: leases, and claims on tickets.

Each router replica holds a lease. Tickets are open from Opened to Closed. A claim gives one to one reaper for a while,
so that no two replicas work on it at once and none is forgotten when its reaper dies as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from router.contract.errors import StoreDown
from router.contract.ids import Epoch, InstanceId, TransferId
from router.contract.ledger import OpenTicket
from router.store import keys
from router.store.connection import StoreClient
from router.store.scripts import read_script

KEEP_S = 3600
"""An ended lease is remembered for so long."""
CLAIM_S = 10.0
LATE_S = 5.0
"""Seconds after its deadline from which a ticket may be claimed whoever owns it; a live owner closes it before."""
CLAIMS_A_SHARD = 64
"""Tickets that one call claims at most: Redis serves nobody else while it runs."""

_RENEW = read_script("clock", "renew")
_REAP = read_script("clock", "reap")

_RECORD = msgspec.msgpack.Decoder(tuple[str, str, int, str, int, int])
"""(owner, prefill or "", its epoch, decode or "", its epoch, deadline in ms), as `lua/post.lua` packs it."""


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases of all known routers, at the moment of a renewal."""

    left_s: dict[str, float]
    """Seconds that each has left; what is not above 0 has ended."""
    remembered: bool
    """The store knew the renewed lease. False for a first one, and when the store has lost what it held."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What one round of claiming has brought."""

    tickets: tuple[OpenTicket, ...] = ()
    owners: frozenset[str] = frozenset()
    """Whose tickets are open and unclaimed."""
    more: bool = False
    """A shard has given as much as one call may; there is probably more."""


class Recovery:
    """Leases and claims of one namespace. Methods raise StoreDown when Redis does not answer."""

    def __init__(self, redis: StoreClient, namespace: str = keys.NAMESPACE) -> None:
        self._redis = redis
        self._namespace = namespace
        self.malformed = 0
        """Tickets that claims could not read, and have left to the time when their keys expire."""

    async def renew(self, owner: str, lease_for_s: float) -> Leases:
        """`owner`'s lease runs for `lease_for_s` from here; all leases, this one included.

        With 0 seconds the lease ends now: others release at once what its owner may have left open.
        """
        key = keys.router_leases(self._namespace)
        now_ms, known, flat = await _RENEW.run(self._redis, (key,), owner, round(lease_for_s * 1000), KEEP_S * 1000)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return Leases({name.decode(): (float(ends_at_ms) - now_ms) / 1000 for name, ends_at_ms in pairs}, known == 1)

    async def claim(self, gone: Collection[str], claim_for_s: float = CLAIM_S, *, late_s: float = LATE_S) -> Claims:
        """Open tickets that are this caller's to end for `claim_for_s`: those of `gone` owners, and late ones.

        Shards that do not answer are left out, for each may lie on a node of its own. Raises StoreDown when none does.
        """
        arguments: tuple[str | int, ...]
        arguments = (round(claim_for_s * 1000), round(late_s * 1000), CLAIMS_A_SHARD, *sorted(gone))
        claiming = (self._claim(shard, arguments) for shard in range(keys.LEDGER_SHARDS))
        found = await asyncio.gather(*claiming, return_exceptions=True)
        answered = [one for one in found if isinstance(one, Claims)]
        for one in found:
            if isinstance(one, BaseException) and not (isinstance(one, StoreDown) and answered):
                raise one
        return Claims(
            tuple(ticket for one in answered for ticket in one.tickets),
            frozenset().union(*(one.owners for one in answered)),
            any(one.more for one in answered),
        )

    async def _claim(self, shard: int, arguments: tuple[str | int, ...]) -> Claims:
        names = tuple(key(self._namespace, shard) for key in (keys.ledger_open, keys.ledger_owned, keys.ledger_tickets))
        now_ms, owners, flat = await _REAP.run(self._redis, names, *arguments)
        records = zip(flat[::2], flat[1::2], strict=True)
        read = [_ticket(transfer_id, record, now_ms) for transfer_id, record in records]
        tickets = tuple(ticket for ticket in read if ticket is not None)
        self.malformed += len(read) - len(tickets)
        return Claims(tickets, frozenset(owner.decode() for owner in owners), len(read) == CLAIMS_A_SHARD)


def _ticket(transfer_id: bytes, record: bytes, now_ms: int) -> OpenTicket | None:
    """The ticket, or None for a record that this version cannot read: it must not hide the others."""
    try:
        owner, prefill, prefill_epoch, decode, decode_epoch, deadline_ms = _RECORD.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return OpenTicket(
        TransferId(transfer_id.decode()),
        owner,
        InstanceId(prefill) if prefill else None,
        Epoch(prefill_epoch),
        InstanceId(decode) if decode else None,
        Epoch(decode_epoch),
        (now_ms - deadline_ms) / 1000,
    )
