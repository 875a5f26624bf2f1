"""What the SeatDesk orders: each effect is carried out by the shim's driver, in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from router.contract.errors import TandemError
from router.contract.ids import EngineId, TransferId
from router.contract.rendezvous import PrefillDone, Registration


@dataclass(frozen=True, slots=True)
class SendRegistration:
    """Tell prefill about the seats (again)."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class SendQueued:
    """Tell prefill that the leg is here and waits for seats (again)."""

    transfer_id: TransferId
    prefill_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class SendCancelled:
    """Tell prefill that we gave up (again)."""

    transfer_id: TransferId
    prefill_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class SendMoved:
    """Pull mode: tell prefill that our READ has ended."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    error: str


@dataclass(frozen=True, slots=True)
class Read:
    """Pull mode: READ now."""

    registration: Registration
    done: PrefillDone


@dataclass(frozen=True, slots=True)
class KVReady:
    """Every promised byte is in the seats; the sequence may run. The pin ends with it."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class FreeSeats:
    """Unpin the seats: nobody can write them any more."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class Fail:
    """End the sequence with this error; the seats stay pinned until FreeSeats."""

    transfer_id: TransferId
    error: TandemError


DecodeEffect = SendRegistration | SendQueued | SendCancelled | SendMoved | Read | KVReady | FreeSeats | Fail
