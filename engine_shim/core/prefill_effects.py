"""What the PrefillDesk orders: each effect is carried out by the shim's driver, in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from engine_shim.core.push import Chunk
from router.contract.ids import EngineId, TransferId
from router.contract.rendezvous import Arrival, JoinState, PrefillDone, Registration


@dataclass(frozen=True, slots=True)
class Write:
    """Push mode: WRITE this chunk now, and report its end."""

    registration: Registration
    done: PrefillDone
    """The KV that is there, the chunk's and perhaps more."""
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Grant:
    """Pull mode: tell decode to READ (again)."""

    registration: Registration
    done: PrefillDone


@dataclass(frozen=True, slots=True)
class StopWriter:
    """Begin no more of this copy; what has begun ends by itself, and that is reported."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class FreeKV:
    """Unpin prefill's blocks of this transfer."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class FreeSeats:
    """Tell decode that nothing of this transfer can land any more."""

    transfer_id: TransferId
    decode_engine_id: EngineId
    reason: str
    begun: bool
    """A WRITE had begun."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell decode that its seats are known."""

    transfer_id: TransferId
    decode_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class Walked:
    """An arrival moved the Rendezvous; for the ledger."""

    transfer_id: TransferId
    arrival: Arrival
    state: JoinState
    note: str


PrefillEffect = Write | Grant | StopWriter | FreeKV | FreeSeats | Acknowledge | Walked
