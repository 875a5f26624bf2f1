from __future__ import annotations

import msgspec

from engine_shim.serve import sse


class _Thing(msgspec.Struct):
    text: str


def test_events_have_exactly_these_bytes():
    assert sse.event(_Thing("a\nb é")) == 'data: {"text":"a\\nb é"}\n\n'.encode()
    assert sse.event_of_json(b"{}") == b"data: {}\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"
