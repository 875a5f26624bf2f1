"""Instance and Load as JSON.

Version history
    1   the dataclasses of `router.contract.instance`, field by field

A reader ignores fields that it does not know; a writer raises VERSION only when an old field changes its meaning. A
record that cannot be read is None: one bad instance must not hide the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from router.contract.instance import Instance, Load

VERSION = 1


@dataclass(frozen=True, slots=True)
class _InstanceRecord:
    v: int
    instance: Instance


@dataclass(frozen=True, slots=True)
class _LoadRecord:
    v: int
    load: Load


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ENCODER = msgspec.json.Encoder()
_INSTANCES = msgspec.json.Decoder(_InstanceRecord)
_LOADS = msgspec.json.Decoder(_LoadRecord)


def encode_instance(instance: Instance) -> bytes:
    """The Instance as a JSON record."""
    return _ENCODER.encode(_InstanceRecord(VERSION, instance))


def decode_instance(raw: bytes) -> Instance | None:
    """The Instance in a record, or None when this version cannot read it."""
    try:
        record = _INSTANCES.decode(raw)
    except _UNREADABLE:
        return None
    return record.instance if record.v == VERSION else None


def encode_load(load: Load) -> bytes:
    """The Load as a JSON record."""
    return _ENCODER.encode(_LoadRecord(VERSION, load))


def decode_load(raw: bytes) -> Load | None:
    """The Load in a record, or None when this version cannot read it."""
    try:
        record = _LOADS.decode(raw)
    except _UNREADABLE:
        return None
    return record.load if record.v == VERSION else None
