"""What goes over connections: the calls of routers and shims, and their answers."""

from __future__ import annotations

from dataclasses import dataclass

from engine_shim.simulation.engine import Prompt
from router.contract.errors import TandemError
from router.contract.ids import EngineId, TransferId
from router.contract.notices import Notice
from router.contract.rendezvous import PrefillDone
from router.contract.wire import NO_WAITS, Handoff, Waits


@dataclass(frozen=True, slots=True)
class LegCall:
    """A router sends a leg."""

    handoff: Handoff
    prompt: Prompt
    left_s: float


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """Prefill has finished; its KV is pinned."""

    engine_id: EngineId
    done: PrefillDone


@dataclass(frozen=True, slots=True)
class Token:
    """A token of decode's answer."""

    transfer_id: TransferId
    index: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """The call has failed."""

    error: TandemError


@dataclass(frozen=True, slots=True)
class CancelCall:
    """A router takes an attempt back."""

    transfer_id: TransferId
    reason: str


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The attempt is taken back."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A shim introduces itself, in a call or in its answer."""

    engine_id: EngineId


@dataclass(frozen=True, slots=True)
class Wanted:
    """Prefill has so many blocks of this prompt, and would take more from who keeps them."""

    transfer_id: TransferId
    num_cached: int
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Kept:
    """So many blocks will be written, under that id, to whoever registers; 0: no more than are there."""

    num_blocks: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """A notice between shims, with both ends' starts."""

    to: EngineId
    sender: EngineId
    notice: Notice


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request."""

    request: str
    prompt: Prompt
    total_s: float
    waits: Waits = NO_WAITS
    """What it allows decode."""
