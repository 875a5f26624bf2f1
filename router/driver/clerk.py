"""Clerk: what is written down about requests, a moment later and a few at a time.

Opening a ticket, counting a request and logging it cost about as much as placing it. Nobody waits for any of them, so
while a request runs its facts are only put on a pile. A slice of it is worked off in each of the next turns of the
event loop, when what was written in this one is on its way: the time for it is that in which engines and clients are
at work, and whoever comes meanwhile waits for a slice, not for the pile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from router.contract.ids import Attempt, Epoch, RequestId, transfer_id_of
from router.contract.ledger import Closed, Course, Opened, Outcome
from router.contract.rendezvous import Ticket
from router.core.placement import Placement
from router.core.record import MAX_MODEL_CHARS, Record
from router.core.tail import tells_error, usage_of
from router.driver.facts import HEDGE_LOST
from router.driver.ports import Books, LedgerPort
from router.legs.answer import read_timing

if TYPE_CHECKING:
    from router.driver.exchange import Exchange

_SERVED = Outcome.SERVED
_UNTOLD = (0.0, 0.0)
_NONE = (0, 0)
_NO_EPOCH = Epoch(0)

SLICE = 4
"""Notes of one turn, at least; of a high pile an eighth, so that it never grows for long."""

_Opening = tuple[RequestId, int, Placement, float]
"""Request id, attempt, placement, seconds until its deadline."""
_Ending = tuple[RequestId, int, str]
"""Request id, attempt, error code: an attempt that another one follows."""

Learn = Callable[[Placement, int, Record], None]
"""Placement, estimated prompt tokens, what came of it."""


class Clerk:
    """Writes to one ledger and one set of books. Belongs to the event loop."""

    __slots__ = ("_armed", "_books", "_ledger", "_owner", "_pile", "_unix_s", "learn")

    def __init__(self, ledger: LedgerPort | None, books: Books, owner: str, learn: Learn | None = None) -> None:
        """`owner` is this replica, as tickets name it. Without a ledger only the books are kept.

        `learn` is called for each finished request that was placed; None: nobody learns.
        """
        self.learn = learn
        self._ledger = ledger
        self._books = books
        self._owner = owner
        self._pile: list[_Opening | _Ending | Record | Exchange] = []
        self._armed = False
        self._unix_s = 0.0

    def put(self, note: _Opening | _Ending | Record | Exchange) -> None:
        """The note (an exchange is one when it has its Outcome) will be worked off in one of the next turns."""
        self._pile.append(note)
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._on_turn)

    def _on_turn(self) -> None:
        size = max(SLICE, len(self._pile) // 8)
        pile, self._pile = self._pile[:size], self._pile[size:]
        self._armed = bool(self._pile)
        if self._armed:
            asyncio.get_running_loop().call_soon(self._on_turn)
        self._work_off(pile)

    def work_off(self) -> None:
        """Everything that has been put is in the ledger's queue and in the books."""
        pile, self._pile = self._pile, []
        self._work_off(pile)

    def _work_off(self, pile: list[_Opening | _Ending | Record | Exchange]) -> None:
        self._unix_s = time.time() - time.monotonic()
        for note in pile:
            if isinstance(note, Record):
                self._books.fold(note)
            elif not isinstance(note, tuple):
                self._finish(note)
            elif len(note) == 3:
                self._end(*note)
            elif self._ledger is not None:
                self._open(self._ledger, *note)

    def _open(
        self, ledger: LedgerPort, request_id: RequestId, attempt: int, placement: Placement, left_s: float
    ) -> None:
        prefill = placement.prefill.instance if placement.prefill is not None else None
        decode = placement.decode.instance if placement.decode is not None else None
        decode_epoch = decode.epoch if decode is not None else _NO_EPOCH
        ticket = Ticket(
            request_id,
            Attempt(attempt),
            placement.mode,
            None if prefill is None else prefill.instance_id,
            prefill.epoch if prefill is not None else decode_epoch,
            decode.instance_id if decode is not None else None,
            decode_epoch,
            left_s,
            self._owner,
        )
        ledger.post(Opened(ticket))

    def _end(self, request_id: RequestId, attempt: int, code: str) -> None:
        if code != HEDGE_LOST:  # nothing was tried again
            self._books.count_retry(code)
        self._close(request_id, attempt, Outcome.FAILED, code)

    def _finish(self, exchange: Exchange) -> None:
        record = _record(exchange, self._unix_s)
        if exchange.attempts and self._ledger is not None:  # else nobody reads it
            self._close(exchange.request_id, exchange.attempts, record.outcome, _course(record))
        self._books.fold(record, exchange.reply.passed)
        if self.learn is not None and exchange.placement is not None:
            self.learn(exchange.placement, exchange.intake.prompt_tokens, record)

    def _close(self, request_id: RequestId, attempt: int, outcome: Outcome, note: str | Course) -> None:
        if self._ledger is not None:
            self._ledger.post(Closed(transfer_id_of(request_id, Attempt(attempt)), outcome, note))


def _record(exchange: Exchange, unix_s: float) -> Record:
    """`unix_s` turns monotonic seconds into Unix seconds."""
    intake, placement, reply = exchange.intake, exchange.placement, exchange.reply
    outcome, code, tail = exchange.outcome, exchange.code, reply.tail
    if outcome is _SERVED and tells_error(tail):
        outcome, code = Outcome.FAILED, "engine_error"
    prefill = placement.prefill if placement is not None else None
    decode = placement.decode if placement is not None else None
    answered = exchange.first_byte_s > 0.0
    seats_s, kv_s = read_timing(reply.engine_headers or []) if prefill is not None else _UNTOLD
    arrived_at = exchange.arrived_at
    content_s, num_events = 0.0, 0
    if (passed := reply.passed) is not None and reply.sse and passed.content_at:
        content_s = passed.content_at - arrived_at
        num_events = passed.num_events - passed.events_before_content - 1
    num_prompt, num_completion = usage_of(tail) if tail else _NONE
    traced = intake.traced
    return Record(
        unix_s + arrived_at,
        exchange.request_id,
        intake.client_id,
        intake.model if placement is not None else intake.model[:MAX_MODEL_CHARS],
        intake.endpoint,
        reply.sse if answered else intake.stream,
        placement.mode if placement is not None else "",
        placement.reason if placement is not None else "",
        prefill.instance.instance_id if prefill is not None else "",
        decode.instance.instance_id if decode is not None else "",
        exchange.attempts,
        exchange.door_s,
        exchange.queued_s,
        exchange.placed_s,
        exchange.sent_s,
        exchange.prefilled_s,
        seats_s,
        kv_s,
        exchange.first_byte_s,
        content_s,
        exchange.last_byte_at - arrived_at if answered else 0.0,
        exchange.ended_s,
        num_events,
        num_prompt,
        num_completion,
        len(intake.body),
        reply.num_bytes,
        exchange.status,
        outcome,
        code,
        traced.trace_id if traced is not None else "",
        traced.parent_id if traced is not None else "",
        exchange.earlier,
        caller=intake.caller,
        chosen_s=exchange.chosen_s,
    )


def _course(record: Record) -> Course:
    return (
        record.code,
        record.mode,
        record.reason,
        record.sent_s,
        record.prefilled_s,
        record.first_byte_s,
        record.ended_s,
    )
