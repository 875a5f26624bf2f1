"""What the driver needs of others: a client to answer, a ledger to write, a place to report to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from router.contract.errors import TandemError
from router.contract.ledger import Entry
from router.core.intake import Intake
from router.core.record import Record
from router.core.tail import Tail
from router.core.timing import Deadlines
from router.legs.answer import Answer
from router.legs.connection import Headers
from router.legs.leg import LegOwner


class ClientPort(Protocol):
    """One client request that waits for its answer. Nothing may be called after the answer has been ended."""

    def name(self, request_id: str) -> None:
        """The answer will carry this X-Request-Id; called once, before anything else."""

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        """An answer of `length` bytes (None: unknown) begins; its head leaves with the first body bytes."""

    def write(self, body: bytes, *, ended: bool) -> None:
        """These bytes of the body, and with `ended` its end, are on their way."""

    def chunk_writer(self) -> Callable[[bytes], object] | None:
        """Puts whole chunks, framing and all, on their way, once the head has left; None where that cannot be."""

    def answer(self, answer: Answer) -> None:
        """The whole answer is on its way."""

    def refuse(self, error: TandemError) -> None:
        """The error is on its way as an HTTP answer."""

    def break_off(self, error: TandemError, *, stream: bool) -> None:
        """The begun answer ends badly: a `stream` with an error event, anything else with its connection."""

    def abandon(self) -> None:
        """The connection is closed without another word."""


class LedgerPort(Protocol):
    """Where attempts are put down."""

    def post(self, entry: Entry) -> None:
        """The entry will be written soon; never waits, never raises."""


class Books(Protocol):
    """Where finished requests are counted and logged."""

    def fold(self, record: Record, passed: Tail | None = None) -> None:
        """The request is over; `passed` is how its answer came, if it was streamed."""

    def count_retry(self, reason: str) -> None:
        """A request goes into another attempt because of this error code."""


class Sender(LegOwner, Protocol):
    """Whose attempt it is."""

    @property
    def intake(self) -> Intake:
        """The request."""

    @property
    def deadlines(self) -> Deadlines:
        """How long its phases may take."""

    def prefilled_for_s(self) -> float:
        """Seconds since prefill has answered well; 0.0 when it has not."""
