"""What happened, in order; and which promise was broken by it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.contract.ids import TransferId, request_of


class Invariant(StrEnum):
    """A promise that the world watches."""

    ONE_OUTCOME = "one_outcome"
    """Every request has exactly one Outcome, and has it within its deadline."""
    WHOLE_STREAM = "whole_stream"
    """The tokens that a client gets are of one attempt, in order, and all there when it is told so."""
    RIGHT_KV = "right_kv"
    """Decode runs on the KV of its own request, token for token."""
    SEATS_SAFE = "seats_safe"
    """No seat is re-used while somebody may still write it."""
    KV_SAFE = "kv_safe"
    """No block of prefill is re-used under a copy that reads it."""
    WRITE_ONCE = "write_once"
    """An attempt's KV is copied at most once."""
    BOUNDED_WAIT = "bounded_wait"
    """Decode waits for KV no longer than its deadline."""
    NOTHING_HELD = "nothing_held"
    """When all is quiet no seat, pin, sequence, Rendezvous or open ticket is left."""
    KEEPS_SERVING = "keeps_serving"
    """A request that begins when the faults are over is served."""
    ROW_EXISTS = "row_exists"
    """No machine meets a fact for which its table has no row."""


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One thing that happened."""

    at_s: float
    who: str
    what: str
    request: str
    """The request that it belongs to, or empty when it belongs to all."""

    def __str__(self) -> str:
        return f"{self.at_s:9.4f}  {self.who:<10} {self.request:<7} {self.what}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    invariant: Invariant
    request: str
    what: str
    at_s: float


def request_in(transfer_id: TransferId) -> str:
    """The request behind a TransferId, or behind the id under which KV comes back for it."""
    return request_of(TransferId(transfer_id.removesuffix(".recall")))[0]


class Story:
    """All lines of one world."""

    def __init__(self) -> None:
        self.lines: list[StoryLine] = []
        self.violations: list[Violation] = []

    def of(self, request: str) -> list[StoryLine]:
        """The lines that concern this request, what concerns all included; everything for the empty request."""
        return [line for line in self.lines if not request or line.request in ("", request)]
