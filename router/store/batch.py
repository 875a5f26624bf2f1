"""Entries on their way to Redis: one script call a shard, whatever number of entries it carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

import msgspec

from router.contract.ids import Attempt, RequestId, request_of, transfer_id_of
from router.contract.ledger import Arrived, Closed, Entry, Noted, Opened
from router.contract.rendezvous import Ticket
from router.store import keys

Posted = tuple[float, Entry]
"""Monotonic seconds at which an entry was posted, and the entry."""

MAX_REQUESTS = 256
"""Requests in one script call: Redis serves nobody else while it runs."""

Line = tuple[object, ...]
"""(age_us, line_no, attempt, kind, word, note, ...) as `lua/post.lua` reads it."""

_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Batch:
    """One call of `post.lua`."""

    keys: tuple[str, ...]
    lines: bytes
    num_entries: int
    built_s: float
    """Monotonic seconds from which the ages of its lines count."""


def build_batches(namespace: str, posted: Iterable[Posted], now_s: float, first_line_no: int) -> Iterator[Batch]:
    """The calls that carry these entries; those of one request stay together and in order.

    Args:
        posted: entries, oldest first.
        now_s: monotonic seconds; Redis dates a line by its own clock less the line's age at this moment.
        first_line_no: number of the first entry; a line that is sent twice keeps its number and is told once.
    Raises:
        UnicodeEncodeError: an entry is not `encodable`.
    """
    shards: dict[int, dict[RequestId, list[Line]]] = {}
    lines_of: dict[RequestId, list[Line]] = {}
    for line_no, (posted_s, entry) in enumerate(posted, first_line_no):
        request_id, attempt, facts = _facts(entry)
        lines = lines_of.get(request_id)
        if lines is None:
            lines = lines_of[request_id] = []
            shards.setdefault(keys.ledger_shard(request_id), {})[request_id] = lines
        lines.append((int((now_s - posted_s) * 1e6), line_no, attempt, *facts))
    for shard, groups in shards.items():
        waiting = list(groups.items())
        for start in range(0, len(waiting), MAX_REQUESTS):
            yield _batch(namespace, shard, waiting[start : start + MAX_REQUESTS], now_s)


def encodable(entry: Entry) -> bool:
    """False for an entry whose text is not Unicode (lone surrogates) and so cannot be written."""
    try:
        _ENCODER.encode(_facts(entry))
    except UnicodeEncodeError:
        return False
    return True


def _facts(entry: Entry) -> tuple[RequestId, Attempt, Line]:
    if isinstance(entry, Opened):
        ticket = entry.ticket
        transfer_id = transfer_id_of(ticket.request_id, ticket.attempt)
        for_ms = round(ticket.deadline_for_s * 1000)
        return ticket.request_id, ticket.attempt, ("o", "opened", _placed(ticket), transfer_id, for_ms)
    request_id, attempt = request_of(entry.transfer_id)
    if isinstance(entry, Noted):
        return request_id, attempt, ("n", entry.stage, entry.note)
    if isinstance(entry, Arrived):
        return request_id, attempt, ("a", entry.arrival, entry.note)
    if isinstance(entry, Closed):
        return request_id, attempt, ("c", entry.outcome, entry.note, entry.transfer_id)
    assert_never(entry)


def _placed(ticket: Ticket) -> str:
    """The ticket in words, for the Story."""
    source = f"{ticket.prefill}@{ticket.prefill_epoch} -> " if ticket.prefill is not None else ""
    return f"{ticket.mode} {source}{ticket.decode}@{ticket.decode_epoch} by {ticket.owner}, {ticket.deadline_for_s:g} s"


def _batch(namespace: str, shard: int, groups: list[tuple[RequestId, list[Line]]], now_s: float) -> Batch:
    names = [keys.ledger_open(namespace, shard)]
    for request_id, _ in groups:
        names.append(keys.ledger_record(namespace, shard, request_id))
        names.append(keys.ledger_story(namespace, shard, request_id))
    lines = [lines for _, lines in groups]
    return Batch(tuple(names), _ENCODER.encode(lines), sum(map(len, lines)), now_s)
