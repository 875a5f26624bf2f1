"""The ledger: what routers and shims put down about each attempt, without ever waiting for Redis.

`post` only appends to a bounded queue. `run` carries the queue to Redis every FLUSH_EVERY_S seconds, all entries in a
few script calls. An entry may be written twice when a connection breaks at the wrong moment: arrivals are idempotent,
the first outcome stands, and lines are told once. When Redis is down the oldest entries go first, and are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import assert_never, cast

from router.contract.errors import StoreDown
from router.contract.ids import RequestId
from router.contract.ledger import Entry, StoryLine
from router.store import keys
from router.store.batch import Batch, Posted, Sorting, build_batches, encodable
from router.store.connection import StoreClient, store_errors
from router.store.delivery import Delivery, Refused, Unwritten, Written, deliver
from router.store.story import read_story

FLUSH_EVERY_S = 0.25
"""One flush costs some 0.4 ms of CPU in one piece however few entries it carries: less than a request in a hundred of a
thousand a second should meet one."""
FIRST_BACK_OFF_S = 0.1
MAX_BACK_OFF_S = 2.0
CLOSE_WITHIN_S = 2.0
MAX_PENDING = 50_000
"""Entries that wait for Redis, some 400 bytes each."""
BATCHES_AT_ONCE = 4
"""In one round trip: to pack one takes 0.1 ms or so, for which requests wait."""
BATCHES_AT_MOST = 32
"""In one round trip of a high pile: Redis serves others only after it."""
SORTED_AT_ONCE = 64
"""Entries, in one turn of the event loop; some 0.1 ms."""
SHARE = 8
"""Of a high pile so large a part at a time: where hundreds of requests make a turn long, a pile that is worked off in
small slices grows faster than it shrinks."""


@dataclass(slots=True)
class LedgerCounts:
    """What became of the entries so far."""

    written: int = 0
    dropped: int = 0
    """Lost while Redis was down: pushed out of the queue by newer ones, or left in it at the end."""
    rejected: int = 0
    """Not written because their text is not Unicode, or because Redis refused their batch for good."""
    fenced: int = 0
    """Arrivals of an attempt that a newer one had replaced."""
    failed_flushes: int = 0


class Ledger:
    """The ledger of one namespace, as one writer keeps it."""

    def __init__(self, redis: StoreClient, namespace: str, writer: str, *, max_pending: int = MAX_PENDING) -> None:
        """`writer` is the name under which the Story shows these entries: a router replica or an instance."""
        self._redis = redis
        self._namespace = namespace
        self._writer = writer
        self._pending: deque[Posted] = deque(maxlen=max_pending)
        self._unsent: list[Batch] = []
        self._flushing = asyncio.Lock()
        self._closing = False
        self.degraded = False
        """True from a failed flush to the next good one."""
        self.counts = LedgerCounts()

    def post(self, entry: Entry) -> None:
        """The entry will be in Redis soon, or be counted as lost. Never waits; any thread may call it."""
        pending = self._pending
        if len(pending) == pending.maxlen:
            self.counts.dropped += 1
        pending.append((time.monotonic(), entry))

    async def run(self) -> None:
        """Flush until `aclose`, or until cancelled; a store that is down is tried again and never ends this."""
        pause_s = FLUSH_EVERY_S
        while not self._closing:
            await asyncio.sleep(pause_s)
            try:
                await self.flush()
            except StoreDown:
                pause_s = min(max(2 * pause_s, FIRST_BACK_OFF_S), MAX_BACK_OFF_S)
            else:
                pause_s = FLUSH_EVERY_S

    async def flush(self) -> None:
        """All entries posted so far are in Redis. Raises StoreDown; what was not written stays queued."""
        async with self._flushing:
            try:
                await self._deliver_all()
            except StoreDown:
                self.degraded = True
                self.counts.failed_flushes += 1
                raise
            self.degraded = False

    async def aclose(self) -> None:
        """`run` ends, after a last try, of at most CLOSE_WITHIN_S seconds, to write what is queued."""
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self.flush()
        except (StoreDown, TimeoutError):
            self.counts.dropped += len(self._pending) + sum(batch.num_entries for batch in self._unsent)

    async def story(self, request_id: RequestId) -> tuple[StoryLine, ...]:
        """The newest lines about all attempts of a request, oldest first; empty if there are none. Raises StoreDown."""
        key = keys.ledger_request(self._namespace, keys.ledger_shard(request_id), request_id)
        with store_errors():
            # `connect` leaves replies undecoded.
            return read_story(cast("dict[bytes, bytes]", await self._redis.hgetall(key)))

    async def _deliver_all(self) -> None:
        if self._pending:
            self._unsent += await self._take()
        at_once = min(max(BATCHES_AT_ONCE, len(self._unsent) // SHARE), BATCHES_AT_MOST)
        while self._unsent:
            sent = self._unsent[:at_once]
            deliveries = await deliver(self._redis, self._writer, sent)
            left = [batch for batch, delivery in zip(sent, deliveries, strict=True) if self._is_left(batch, delivery)]
            self._unsent[: len(sent)] = left
            for delivery in deliveries:
                if isinstance(delivery, Unwritten) and not delivery.again_at_once:
                    raise StoreDown(f"The store takes no entries ({delivery.reason}); check its state.")

    def _is_left(self, batch: Batch, delivery: Delivery) -> bool:
        match delivery:
            case Written():
                self.counts.written += batch.num_entries
                self.counts.fenced += delivery.fenced
                return False
            case Refused():
                self.counts.rejected += batch.num_entries
                return False
            case Unwritten():
                return True
            case _:
                assert_never(delivery)

    async def _take(self) -> list[Batch]:
        """The calls for all entries so far, made in several turns of the event loop, since requests wait for it."""
        # One by one, since another thread may post meanwhile.
        posted = [self._pending.popleft() for _ in range(len(self._pending))]
        sorting, batches = Sorting(self._namespace), []
        try:
            size = max(SORTED_AT_ONCE, len(posted) // SHARE)
            for start in range(0, len(posted), size):
                sorting.add(posted[start : start + size])
                await asyncio.sleep(0)
            size = max(1, sorting.num_batches // SHARE)
            for batch in sorting.batches():
                batches.append(batch)
                if not len(batches) % size:
                    await asyncio.sleep(0)
        except UnicodeEncodeError:
            sound = [one for one in posted if encodable(one[1])]
            self.counts.rejected += len(posted) - len(sound)
            return list(build_batches(self._namespace, sound))
        except asyncio.CancelledError:
            self._pending.extendleft(reversed(posted))
            raise
        return batches
