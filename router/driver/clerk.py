"""Clerk: what is written down about requests, a moment later and many at once.

Opening a ticket, counting a request and logging it cost about as much as placing it. Nobody waits for any of them, so
while a request runs its facts are only put on a pile; the pile is worked off when it is high or after DELAY_S.
"""

from __future__ import annotations

import asyncio
import time

from router.contract.ids import Attempt, RequestId, transfer_id_of
from router.contract.ledger import Closed, Opened, Outcome
from router.contract.rendezvous import Ticket
from router.core.placement import Placement
from router.core.record import Record
from router.core.tail import completion_tokens, tells_error
from router.driver.ports import Books, LedgerPort

DELAY_S = 0.02
PILE = 64

_Opening = tuple[str, int, Placement, float]
"""Request id, attempt, placement, seconds until its deadline."""
_Ending = tuple[str, int, str]
"""Request id, attempt, error code: an attempt that another one follows."""
_Finish = tuple[Record, bytes]
"""The record of a request that is over, and the tail of its answer."""


class Clerk:
    """Writes to one ledger and one set of books. Belongs to the event loop."""

    __slots__ = ("_armed", "_books", "_ledger", "_owner", "_pile")

    def __init__(self, ledger: LedgerPort | None, books: Books, owner: str) -> None:
        """`owner` is this replica, as tickets name it. Without a ledger only the books are kept."""
        self._ledger = ledger
        self._books = books
        self._owner = owner
        self._pile: list[_Opening | _Ending | _Finish] = []
        self._armed = False

    def put(self, note: _Opening | _Ending | _Finish) -> None:
        """The note will be worked off within DELAY_S; the record in it must not change any more."""
        self._pile.append(note)
        if len(self._pile) >= PILE:
            self.work_off()
        elif not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_later(DELAY_S, self._on_delay)

    def _on_delay(self) -> None:
        self._armed = False
        self.work_off()

    def work_off(self) -> None:
        """Everything that has been put is in the ledger's queue and in the books."""
        pile, self._pile = self._pile, []
        for note in pile:
            if len(note) == 4:
                if self._ledger is not None:
                    self._open(self._ledger, *note)
            elif len(note) == 3:
                self._end(*note)
            else:
                self._finish(*note)

    def _open(self, ledger: LedgerPort, request_id: str, attempt: int, placement: Placement, left_s: float) -> None:
        prefill, decode = placement.prefill, placement.decode
        ticket = Ticket(
            RequestId(request_id),
            Attempt(attempt),
            placement.mode,
            None if prefill is None else prefill.instance_id,
            decode.epoch if prefill is None else prefill.epoch,
            decode.instance_id,
            decode.epoch,
            left_s,
            self._owner,
        )
        ledger.post(Opened(ticket))

    def _end(self, request_id: str, attempt: int, code: str) -> None:
        self._books.count_retry(code)
        self._close(request_id, attempt, Outcome.FAILED, code)

    def _finish(self, record: Record, tail: bytes) -> None:
        record.completion_tokens = completion_tokens(tail)
        if record.outcome is Outcome.SERVED and tells_error(tail):
            record.outcome, record.code = Outcome.FAILED, "engine_error"
        if record.attempts:
            self._close(record.request_id, record.attempts, record.outcome, record.code)
        record.at = time.time()
        self._books.fold(record)

    def _close(self, request_id: str, attempt: int, outcome: Outcome, code: str) -> None:
        if self._ledger is not None:
            self._ledger.post(Closed(transfer_id_of(RequestId(request_id), Attempt(attempt)), outcome, code))
