"""A ledger that answers: where an arrival has brought its Rendezvous, and how many tickets are open."""

from __future__ import annotations

import time
from dataclasses import dataclass

from router.contract.errors import StaleAttempt
from router.contract.ledger import Arrived
from router.contract.rendezvous import JoinEffect, JoinState
from router.store import keys
from router.store.batch import build_batches
from router.store.connection import store_errors
from router.store.delivery import GRACE_S, POST, post_arguments
from router.store.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Walked:
    """Where an arrival has brought its Rendezvous."""

    state: JoinState
    effects: tuple[JoinEffect, ...]


class ReadLedger(Ledger):
    """Routers and shims only post: nobody of theirs waits for the store."""

    async def arrive(self, entry: Arrived) -> Walked:
        """Walk one arrival and wait for what Redis makes of it.

        Raises:
            StaleAttempt: a newer attempt of the request exists, and this arrival could order a second Write.
            StoreDown: Redis does not answer.
        """
        (batch,) = build_batches(self._namespace, [(time.monotonic(), entry)])
        reply = await POST.run(self._redis, batch.keys, *post_arguments(self._writer, batch))
        verdict, state, effects = (part.decode() for part in reply[1:])
        if verdict == "fenced":
            raise StaleAttempt(f"A newer attempt has replaced {entry.transfer_id}; give back what it still holds.")
        return Walked(JoinState(state), tuple(JoinEffect(effect) for effect in effects.split(",") if effect))

    async def open_tickets(self) -> int:
        """Tickets of all writers that are open and not GRACE_S seconds past their deadline. Raises StoreDown."""
        late_ms, count = (time.time() - GRACE_S) * 1000, 0
        with store_errors():
            for shard in range(keys.LEDGER_SHARDS):
                count += await self._redis.zcount(keys.ledger_open(self._namespace, shard), late_ms, "+inf")
        return count
