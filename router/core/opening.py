"""Opening: what the first event of a stream says. Until it is known, the stream can still fail like any other answer.

Comments and empty lines only keep a connection alive, and an error as the first event is that of an engine which had
said 200 before it knew. An event ends with an empty line; of it `data` counts (WHATWG HTML, 9.2.6).
"""

from __future__ import annotations

import re

import msgspec

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_PAYLOAD = re.compile(rb"(?:^|[\r\n])data: ?([^\r\n]*)")
_FAILED = re.compile(rb"(?:^|[\r\n])event: ?(?:error|response\.failed)(?:[\r\n]|$)")


class _Told(msgspec.Struct, gc=False):
    error: object = None
    kind: object = msgspec.field(default=None, name="object")
    type: object = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: object = None


class _Chosen(msgspec.Struct, gc=False):
    choices: list[_Choice]


_TOLD, _CHOSEN = msgspec.json.Decoder(_Told), msgspec.json.Decoder(_Chosen)


def first_event(held: bytes) -> bytes | None:
    """The first event with data, without its end; None before it is whole."""
    return next((block for block in _END.split(held)[:-1] if _PAYLOAD.search(block) is not None), None)


def payload_of(event: bytes) -> bytes:
    """What the event's `data` lines say."""
    return b"\n".join(_PAYLOAD.findall(event))


def tells_failure(event: bytes) -> bool:
    """True when this event is no answer but the engine's own word that there is none, or ends what has not begun so."""
    if b'"error"' not in event:
        return False
    payload = payload_of(event)
    try:
        told = _TOLD.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    if told.error or "error" in (told.kind, told.type) or _FAILED.search(event) is not None:
        return True
    return b'"finish_reason"' in payload and _ends_in_error(payload)


def _ends_in_error(payload: bytes) -> bool:
    try:
        choices = _CHOSEN.decode(payload).choices
    except (msgspec.DecodeError, RecursionError):
        return False
    return any(choice.finish_reason == "error" for choice in choices)
