"""The Rendezvous: two arrivals in any order, one Write.

Decode says "these are my seats" (Registered), prefill says "KV for n tokens is in these blocks" (Prefilled). Whichever
comes second makes the pair MATCHED, and that edge alone orders the copy. The table below is the whole rule. Python
walks it here (`join`) and Redis walks the same rows in Lua (`router/store/lua`), so the two cannot drift.

The side that copies is the *mover*: prefill in push mode (it WRITEs), decode in pull mode (it READs). WriterDone and
WriterFailed both mean that no further byte of this attempt can land; a mover that is not sure must stay silent.

    state     means
    EMPTY     nothing has arrived
    SEATED    decode's seats are reserved and known here; prefill is still computing
    FILLED    prefill's KV is complete and pinned; decode has not registered
    MATCHED   both are known and the mover has been told to copy
    LANDED    the mover has finished; seats hold the KV, prefill's pin is gone
    DRAINING  abandoned while the mover may be copying; nothing may be re-used yet
    VOID      abandoned or failed, and nothing of this attempt can land any more

Effects are idempotent by TransferId: a row that repeats an arrival may order the same Free again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from router.contract.ids import Attempt, EngineId, Epoch, InstanceId, RequestId, TransferId
from router.contract.instance import Mode
from router.contract.kv import BlockTable


class JoinState(StrEnum):
    """Where a Rendezvous stands."""

    EMPTY = "EMPTY"
    SEATED = "SEATED"
    FILLED = "FILLED"
    MATCHED = "MATCHED"
    LANDED = "LANDED"
    DRAINING = "DRAINING"
    VOID = "VOID"

    @property
    def closed(self) -> bool:
        """True when nothing of this attempt can happen any more."""
        return self in (JoinState.LANDED, JoinState.VOID)


class Arrival(StrEnum):
    """A fact that moves a Rendezvous."""

    REGISTERED = "Registered"
    PREFILLED = "Prefilled"
    ABANDONED = "Abandoned"
    WRITER_DONE = "WriterDone"
    WRITER_FAILED = "WriterFailed"


class JoinEffect(StrEnum):
    """What the walker must do after a step."""

    WRITE = "Write"
    FREE_SEATS = "FreeSeats"
    FREE_KV = "FreeKV"
    STOP_WRITER = "StopWriter"


_S, _A, _E = JoinState, Arrival, JoinEffect

Row = tuple[JoinState, tuple[JoinEffect, ...]]

JOIN: dict[tuple[JoinState, Arrival], Row] = {
    (_S.EMPTY, _A.REGISTERED): (_S.SEATED, ()),
    (_S.EMPTY, _A.PREFILLED): (_S.FILLED, ()),
    (_S.EMPTY, _A.ABANDONED): (_S.VOID, ()),
    (_S.SEATED, _A.REGISTERED): (_S.SEATED, ()),
    (_S.SEATED, _A.PREFILLED): (_S.MATCHED, (_E.WRITE,)),
    (_S.SEATED, _A.ABANDONED): (_S.VOID, (_E.FREE_SEATS,)),
    (_S.FILLED, _A.PREFILLED): (_S.FILLED, ()),
    (_S.FILLED, _A.REGISTERED): (_S.MATCHED, (_E.WRITE,)),
    (_S.FILLED, _A.ABANDONED): (_S.VOID, (_E.FREE_KV,)),
    (_S.MATCHED, _A.REGISTERED): (_S.MATCHED, ()),
    (_S.MATCHED, _A.PREFILLED): (_S.MATCHED, ()),
    (_S.MATCHED, _A.WRITER_DONE): (_S.LANDED, (_E.FREE_KV,)),
    (_S.MATCHED, _A.WRITER_FAILED): (_S.VOID, (_E.FREE_SEATS, _E.FREE_KV)),
    (_S.MATCHED, _A.ABANDONED): (_S.DRAINING, (_E.STOP_WRITER,)),
    (_S.DRAINING, _A.REGISTERED): (_S.DRAINING, ()),
    (_S.DRAINING, _A.PREFILLED): (_S.DRAINING, ()),
    (_S.DRAINING, _A.ABANDONED): (_S.DRAINING, ()),
    (_S.DRAINING, _A.WRITER_DONE): (_S.VOID, (_E.FREE_SEATS, _E.FREE_KV)),
    (_S.DRAINING, _A.WRITER_FAILED): (_S.VOID, (_E.FREE_SEATS, _E.FREE_KV)),
    (_S.LANDED, _A.REGISTERED): (_S.LANDED, ()),
    (_S.LANDED, _A.PREFILLED): (_S.LANDED, ()),
    (_S.LANDED, _A.ABANDONED): (_S.LANDED, ()),
    (_S.LANDED, _A.WRITER_DONE): (_S.LANDED, ()),
    (_S.LANDED, _A.WRITER_FAILED): (_S.LANDED, ()),
    (_S.VOID, _A.REGISTERED): (_S.VOID, (_E.FREE_SEATS,)),
    (_S.VOID, _A.PREFILLED): (_S.VOID, (_E.FREE_KV,)),
    (_S.VOID, _A.ABANDONED): (_S.VOID, ()),
    (_S.VOID, _A.WRITER_DONE): (_S.VOID, ()),
    (_S.VOID, _A.WRITER_FAILED): (_S.VOID, ()),
}
"""Every legal edge. An absent row is a bug of the walker's shell (a mover that reports before it was told to copy)."""


def join(state: JoinState, arrival: Arrival) -> Row | None:
    """The state after this arrival and the effects it orders, or None when the table has no such row."""
    return JOIN.get((state, arrival))


@dataclass(frozen=True, slots=True)
class Registration:
    """Decode says: these are my seats, and this is who I am."""

    transfer_id: TransferId
    mode: Mode
    decode_engine_id: EngineId
    prefill_engine_id: EngineId
    seats: BlockTable
    """Decode's blocks of the whole prompt, in decode's block size; seat 0 holds token 0."""
    first_token: int
    """Tokens below this are already in decode's prefix cache and must not be written."""
    num_tokens: int
    """Move tokens `first_token <= t < num_tokens`; equal values mean that nothing is wanted."""


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """Prefill says: KV for `num_tokens` tokens is in these blocks."""

    transfer_id: TransferId
    blocks: BlockTable
    num_tokens: int


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """The ledger record of one (request, attempt), as the router opens it. One is made per attempt: see Record."""

    request_id: RequestId
    attempt: Attempt
    mode: Mode
    prefill: InstanceId | None
    prefill_epoch: Epoch
    decode: InstanceId | None
    """None as long as it is to be chosen late: the ticket is opened once more when it is."""
    decode_epoch: Epoch
    deadline_for_s: float
    """Seconds from opening until the reaper may call the attempt abandoned."""
    owner: str
    """The router replica that answers for it."""
