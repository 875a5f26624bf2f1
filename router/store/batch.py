"""Entries on their way to Redis: one script call a shard, whatever number of entries it carries.

This is the part of the ledger that costs the router something for each entry, hence plain tuples: msgspec needs
several times as long for a dataclass or an enum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

import msgspec

from router.contract.ids import Attempt, RequestId, TransferId, request_of
from router.contract.ledger import Arrived, Closed, Entry, Noted, Opened
from router.store import keys
from router.store.story import pack_ticket

Posted = tuple[float, Entry]
"""Monotonic seconds at which an entry was posted, and the entry."""

MAX_ATTEMPTS = 64
"""Attempts in one script call: Redis serves nobody else while it runs."""

_Line = tuple[float, str, str, object] | tuple[float, str, str, object, int]
"""(posted_s, kind, word, note), and deadline_for_ms for Opened; kinds as `lua/post.lua` reads them."""
_Group = tuple[TransferId, Attempt, list[_Line]]
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Batch:
    """One call of `lua/post.lua`."""

    keys: tuple[bytes, ...]
    groups: bytes
    num_entries: int


class Sorting:
    """Entries, oldest first, on their way into calls; those of one attempt stay together and in order.

    Made to be done bit by bit, so that an event loop may go on with something else in between.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._posted_of: dict[TransferId, list[Posted]] = {}
        self._shards: dict[int, list[tuple[bytes, TransferId, Attempt]]] = {}

    def add(self, posted: Iterable[Posted]) -> None:
        """These entries are among them. Raises UnicodeEncodeError when one is not `encodable`."""
        posted_of = self._posted_of
        for one in posted:
            transfer_id = one[1].transfer_id
            before = posted_of.get(transfer_id)
            if before is not None:
                before.append(one)
                continue
            posted_of[transfer_id] = [one]
            request_id, attempt = request_of(transfer_id)
            known = self._shards.setdefault(keys.ledger_shard(request_id), [])
            known.append((request_id.encode(), transfer_id, attempt))

    @property
    def num_batches(self) -> int:
        """Calls that carry what has been added."""
        return sum(-(-len(attempts) // MAX_ATTEMPTS) for attempts in self._shards.values())

    def batches(self) -> Iterator[Batch]:
        """The calls that carry them, each made when it is asked for. Raises as `add`."""
        for shard, attempts in self._shards.items():
            for start in range(0, len(attempts), MAX_ATTEMPTS):
                groups: list[tuple[bytes, _Group]] = []
                for request, transfer_id, attempt in attempts[start : start + MAX_ATTEMPTS]:
                    lines = [_line(posted_s, entry) for posted_s, entry in self._posted_of[transfer_id]]
                    groups.append((request, (transfer_id, attempt, lines)))
                yield _batch(self._namespace, shard, groups)


def build_batches(namespace: str, posted: Iterable[Posted]) -> Iterator[Batch]:
    """The calls that carry these entries (see Sorting).

    Raises UnicodeEncodeError when an entry is not `encodable`.
    """
    sorting = Sorting(namespace)
    sorting.add(posted)
    return sorting.batches()


def encodable(entry: Entry) -> bool:
    """False for an entry whose text is not Unicode (lone surrogates), which cannot be written."""
    try:
        _ENCODER.encode((entry.transfer_id, _line(0.0, entry)))
    except UnicodeEncodeError:
        return False
    return True


def _line(posted_s: float, entry: Entry) -> _Line:
    if isinstance(entry, Noted):
        return posted_s, "n", entry.stage, entry.note
    if isinstance(entry, Arrived):
        return posted_s, "a", str(entry.arrival), entry.note
    if isinstance(entry, Closed):
        return posted_s, "c", str(entry.outcome), entry.note
    if isinstance(entry, Opened):
        ticket = entry.ticket
        return posted_s, "o", "opened", pack_ticket(ticket), round(ticket.deadline_for_s * 1000)
    assert_never(entry)


def _batch(namespace: str, shard: int, groups: list[tuple[bytes, _Group]]) -> Batch:
    names = [key(namespace, shard).encode() for key in (keys.ledger_open, keys.ledger_owned, keys.ledger_tickets)]
    # The id is each key's end, so what stands before it is built once a batch and not once an attempt.
    before_id = keys.ledger_request(namespace, shard, RequestId("")).encode()
    names.extend(before_id + request_id for request_id, _ in groups)
    num_entries = sum(len(group[2]) for _, group in groups)
    return Batch(tuple(names), _ENCODER.encode([group for _, group in groups]), num_entries)
