"""Server-sent events that the router makes itself: only the one that says a stream has failed."""

from __future__ import annotations

from router.api.problems import envelope
from router.contract.errors import TandemError


def error_event(error: TandemError) -> bytes:
    """The last event of a broken stream: OpenAI's envelope. No `[DONE]` follows, so no client takes it for a good end.

    It starts with an empty line, which ends an event that the engine may have left unfinished.
    """
    return b"\n\ndata: " + envelope(error) + b"\n\n"
