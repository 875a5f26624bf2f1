"""Notices: what two shims tell each other beside the KV cache itself.

They travel as NIXL notifications: magic `TN2`, one kind byte, the Seal's mark over kind and body, the body as JSON.
Tags (see `tags`) share the channel and start with another magic. Every notice of a Rendezvous names its transfer
(request and attempt) and both engines (instance and epoch), so that what comes late or from elsewhere can be told apart
and is refused; `read_notice` says why.

    kind  notice        direction                  says
    R     Registered    decode -> prefill          these are my seats (Registration); again until Acknowledged, and as a
                                                   sign of life
    Q     Queued        decode -> prefill          I am here, but have no seats yet: keep the KV
    A     Acknowledged  prefill -> decode          I know your seats
    G     Granted       prefill -> decode          pull mode: matched, READ from these blocks (PrefillDone)
    M     Moved         decode -> prefill          pull mode: my READ has ended, well or badly
    C     Cancelled     decode -> prefill          I no longer want it; again until Stopped, before I re-use the seats
    X     Stopped       prefill -> decode          nothing of this attempt can land any more, and why
    L     Left          either -> all              this engine goes away for good; nothing of it runs any more
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.rendezvous import PrefillDone, Registration
from router.contract.seal import MARK_BYTES, NOTICE, Seal

MAGIC = b"TN2"
_HEAD_BYTES = len(MAGIC) + 1 + MARK_BYTES

LANDED = "landed"
"""Reason of a Stopped: the WRITE was complete long ago, so a decode that has not seen its Tags never will."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Decode's seats, on their way to prefill."""

    registration: Registration

    @property
    def transfer_id(self) -> TransferId:
        """Of the registration."""
        return self.registration.transfer_id

    @property
    def prefill_engine_id(self) -> EngineId:
        """The receiver."""
        return self.registration.prefill_engine_id

    @property
    def decode_engine_id(self) -> EngineId:
        """The sender."""
        return self.registration.decode_engine_id


@dataclass(frozen=True, slots=True)
class Queued:
    """Decode's leg waits for seats; prefill's KV is still wanted."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    decode_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Prefill knows decode's seats."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    decode_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class Granted:
    """Pull mode: prefill's blocks are pinned for this READ until Moved comes back."""

    done: PrefillDone
    prefill_engine_id: EngineId
    decode_engine_id: EngineId

    @property
    def transfer_id(self) -> TransferId:
        """Of the finished prefill."""
        return self.done.transfer_id


@dataclass(frozen=True, slots=True)
class Moved:
    """Pull mode: decode's READ has ended; `error` is empty when all bytes arrived."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    decode_engine_id: EngineId
    error: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Decode gave the request up and keeps its seats until Stopped arrives."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    decode_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class Stopped:
    """Prefill will not write for this attempt (any more)."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    decode_engine_id: EngineId
    reason: str
    """A code of the error tree, `cancelled`, or LANDED."""
    begun: bool
    """A WRITE had begun, so what lies in buffers may still have to settle before the seats are re-used."""


@dataclass(frozen=True, slots=True)
class Left:
    """The engine `engine_id` goes away for good."""

    engine_id: EngineId


Notice = Registered | Queued | Acknowledged | Granted | Moved | Cancelled | Stopped | Left

_KINDS: dict[bytes, type[Notice]] = {
    b"R": Registered,
    b"Q": Queued,
    b"A": Acknowledged,
    b"G": Granted,
    b"M": Moved,
    b"C": Cancelled,
    b"X": Stopped,
    b"L": Left,
}
_BYTES = {kind: byte for byte, kind in _KINDS.items()}
_TO_PREFILL = (Registered, Queued, Moved, Cancelled)


class Refused(StrEnum):
    """Why a notice does not count."""

    UNREADABLE = "unreadable"
    """No notice of this version."""
    FORGED = "forged"
    """Sealed with another key, or sent by another engine than it names."""
    STALE_EPOCH = "stale_epoch"
    """Meant for another engine, such as an earlier start of this instance."""
    NOT_MET = "not_met"
    """From an engine with which no handshake has been made, or whose process is known to have ended."""


def write_notice(notice: Notice, seal: Seal) -> bytes:
    """The notice as sealed bytes."""
    kind = _BYTES[type(notice)]
    body = json.dumps(notice, default=_plain, separators=(",", ":")).encode()
    return MAGIC + kind + seal.mark(NOTICE, kind + body) + body


def read_notice(raw: bytes, seal: Seal, *, sender: EngineId, receiver: EngineId) -> Notice | Refused:
    """The notice in `raw`, which came from `sender` to `receiver`, or why it does not count. Never raises."""
    kind = _KINDS.get(raw[3:4])
    if raw[:3] != MAGIC or kind is None:
        return Refused.UNREADABLE
    body = raw[_HEAD_BYTES:]
    if not seal.holds(NOTICE, raw[3:4] + body, raw[4:_HEAD_BYTES]):
        return Refused.FORGED
    try:
        notice = _READERS[kind](json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Refused.UNREADABLE
    if isinstance(notice, Left):
        return notice if notice.engine_id == sender else Refused.FORGED
    source, target = notice.prefill_engine_id, notice.decode_engine_id
    if isinstance(notice, _TO_PREFILL):
        source, target = target, source
    if source != sender:
        return Refused.FORGED
    return notice if target == receiver else Refused.STALE_EPOCH


# Not dataclasses.asdict: it copies every block id by itself, which takes milliseconds for a long prompt.
def _plain(record: Notice | Registration | PrefillDone) -> dict[str, object]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


# Decoded JSON of a peer: every field is forced to its type below.
def _blocks(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(block) is int and block >= 0 for block in value):
        raise ValueError("a block table is a list of block ids")
    return tuple(value)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a count is an integer of at least 0")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("an id or reason is a string")
    return value


# Any: decoded JSON, checked field by field.
def _parties(body: dict[str, Any]) -> tuple[TransferId, EngineId, EngineId]:
    return (
        TransferId(_text(body["transfer_id"])),
        EngineId(_text(body["prefill_engine_id"])),
        EngineId(_text(body["decode_engine_id"])),
    )


def _registered(body: dict[str, Any]) -> Registered:
    raw = body["registration"]
    registration = Registration(
        transfer_id=TransferId(_text(raw["transfer_id"])),
        mode=Mode(raw["mode"]),
        decode_engine_id=EngineId(_text(raw["decode_engine_id"])),
        prefill_engine_id=EngineId(_text(raw["prefill_engine_id"])),
        seats=_blocks(raw["seats"]),
        first_token=_count(raw["first_token"]),
        num_tokens=_count(raw["num_tokens"]),
    )
    if registration.first_token > registration.num_tokens:
        raise ValueError("first_token lies behind num_tokens")
    return Registered(registration)


def _granted(body: dict[str, Any]) -> Granted:
    raw = body["done"]
    done = PrefillDone(TransferId(_text(raw["transfer_id"])), _blocks(raw["blocks"]), _count(raw["num_tokens"]))
    return Granted(done, EngineId(_text(body["prefill_engine_id"])), EngineId(_text(body["decode_engine_id"])))


def _stopped(body: dict[str, Any]) -> Stopped:
    begun = body["begun"]
    if not isinstance(begun, bool):
        raise ValueError("begun is true or false")
    return Stopped(*_parties(body), _text(body["reason"]), begun)


_READERS: dict[type[Notice], Callable[[dict[str, Any]], Notice]] = {
    Registered: _registered,
    Queued: lambda body: Queued(*_parties(body)),
    Acknowledged: lambda body: Acknowledged(*_parties(body)),
    Granted: _granted,
    Moved: lambda body: Moved(*_parties(body), _text(body["error"])),
    Cancelled: lambda body: Cancelled(*_parties(body)),
    Stopped: _stopped,
    Left: lambda body: Left(EngineId(_text(body["engine_id"]))),
}
