"""Notices: what two shims tell each other beside the KV cache itself.

They travel as NIXL notifications, prefill <-> decode, encoded as `TN1`, one kind byte, and JSON. A notice that cannot
be read is None, never an exception: it costs nobody but its sender. Tags (see `tags`) share the channel and start with
another magic.

    kind  notice      direction                  says
    R     Registered  decode -> prefill          these are my seats (Registration)
    G     Granted     prefill -> decode          pull mode: matched, READ from these blocks (PrefillDone)
    M     Moved       decode -> prefill          pull mode: my READ has ended, well or badly
    C     Cancelled   decode -> prefill          I no longer want it; answer Stopped before I re-use the seats
    X     Stopped     prefill -> decode          nothing of this attempt can land any more, and why
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.rendezvous import PrefillDone, Registration

MAGIC = b"TN1"


@dataclass(frozen=True, slots=True)
class Registered:
    """Decode's seats, on their way to prefill."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class Granted:
    """Pull mode: prefill's blocks are pinned for this READ until Moved comes back."""

    prefill_engine_id: EngineId
    done: PrefillDone


@dataclass(frozen=True, slots=True)
class Moved:
    """Pull mode: decode's READ has ended; `error` is empty when all bytes arrived."""

    transfer_id: TransferId
    decode_engine_id: EngineId
    error: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Decode gave the request up and keeps its seats until Stopped arrives."""

    transfer_id: TransferId
    decode_engine_id: EngineId


@dataclass(frozen=True, slots=True)
class Stopped:
    """Prefill will not write for this attempt (any more). `reason` is a code of the error tree, or `cancelled`."""

    transfer_id: TransferId
    prefill_engine_id: EngineId
    reason: str


Notice = Registered | Granted | Moved | Cancelled | Stopped

_KINDS: dict[bytes, type[Notice]] = {b"R": Registered, b"G": Granted, b"M": Moved, b"C": Cancelled, b"X": Stopped}
_BYTES = {kind: byte for byte, kind in _KINDS.items()}


def encode_notice(notice: Notice) -> bytes:
    """The notice as bytes."""
    return MAGIC + _BYTES[type(notice)] + json.dumps(notice, default=_plain, separators=(",", ":")).encode()


def decode_notice(raw: bytes) -> Notice | None:
    """The notice in `raw`, or None when these bytes are no notice of this version."""
    if raw[:3] != MAGIC:
        return None
    kind = _KINDS.get(raw[3:4])
    if kind is None:
        return None
    try:
        return _READERS[kind](json.loads(raw[4:]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


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
    return Granted(EngineId(_text(body["prefill_engine_id"])), done)


def _moved(body: dict[str, Any]) -> Moved:
    return Moved(
        TransferId(_text(body["transfer_id"])), EngineId(_text(body["decode_engine_id"])), _text(body["error"])
    )


def _cancelled(body: dict[str, Any]) -> Cancelled:
    return Cancelled(TransferId(_text(body["transfer_id"])), EngineId(_text(body["decode_engine_id"])))


def _stopped(body: dict[str, Any]) -> Stopped:
    return Stopped(
        TransferId(_text(body["transfer_id"])), EngineId(_text(body["prefill_engine_id"])), _text(body["reason"])
    )


# Any: decoded JSON, checked field by field in the readers.
_READERS: dict[type[Notice], Callable[[dict[str, Any]], Notice]] = {
    Registered: _registered,
    Granted: _granted,
    Moved: _moved,
    Cancelled: _cancelled,
    Stopped: _stopped,
}
