"""Timing: what a decode leg's answer tells the router of its way to the first token, in a Server-Timing header."""

from __future__ import annotations

from engine_shim.driver import Stream
from engine_shim.serve.reply import Headers


def timing_headers(stream: Stream, began_at: float) -> Headers:
    """`seats` from the leg's arrival to its Registration, `kv` from there to KVReady, ms; nothing without a hand-over.

    Args:
        began_at: when the leg arrived, monotonic seconds.
    """
    if not stream.seated_at:
        return ()
    kv_ms = max(0.0, stream.kv_ready_at - stream.seated_at) * 1000
    seats_ms = (stream.seated_at - began_at) * 1000
    return ((b"server-timing", b"seats;dur=%.3f, kv;dur=%.3f" % (seats_ms, kv_ms)),)
