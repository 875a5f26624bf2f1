"""SeatTicket: one decode leg that receives KV, and where its seats stand (see `seats` for the rules)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine_shim.core.receive import ReceiveCounter
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.rendezvous import Registration
from router.contract.wire import Waits


class SeatState(StrEnum):
    """Where a decode leg's seats stand."""

    QUEUED = "QUEUED"
    TELLING = "TELLING"
    WAITING = "WAITING"
    READING = "READING"
    LEAVING = "LEAVING"
    SETTLING = "SETTLING"
    CLOSED = "CLOSED"

    @property
    def given_up(self) -> bool:
        """True when only the seats are left, for others to let go."""
        return self in (SeatState.LEAVING, SeatState.SETTLING)


@dataclass(slots=True)
class SeatTicket:
    """One decode leg that receives KV."""

    transfer_id: TransferId
    mode: Mode
    prefill_engine_id: EngineId
    counter: ReceiveCounter
    waits: Waits
    """Of this leg: for its seats, and for its KV."""
    state: SeatState = SeatState.QUEUED
    registration: Registration | None = None
    deadline_at: float = 0.0
    """QUEUED: of the seats; WAITING: of the KV."""
    settling_since: float | None = None
    """SETTLING: polled seconds at the first tick of it."""
    say_at: float = 0.0
    """When prefill is told again."""
    landed: bool = False
    """Prefill says that it has written everything, and will write no more."""
    reading: bool = False
    """Our own READ is posted; until it ends, nothing else may end the pin."""
