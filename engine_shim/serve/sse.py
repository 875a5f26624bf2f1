"""Server-sent events, as OpenAI's clients read them: `data: {...}` and a blank line; the last one is `[DONE]`."""

from __future__ import annotations

import msgspec

HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def event(payload: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: " + _encode(payload) + b"\n\n"


def event_of_json(raw: bytes) -> bytes:
    """One event whose JSON is there already."""
    return b"data: " + raw + b"\n\n"
