"""TakeBack: tells prefill that nobody will come for a KV cache.

Decode's shim tells it too when it has heard of the request; this covers the attempts whose decode leg never got so far.
Best effort: whatever becomes of it, prefill's lease ends the wait in the end.
"""

from __future__ import annotations

from router.contract.errors import Blame, LegError
from router.legs.connection import Connection, Headers
from router.legs.leg import Leg
from router.legs.pool import LegPool

PATH = b"/kv/cancel"


class _Nobody:
    """Owner of a leg whose end interests nobody."""

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Not heard."""

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """Not heard."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """Not heard."""


class TakeBack(Leg):
    """A call whose answer nobody reads."""

    side = Blame.PREFILL

    def __init__(self, pool: LegPool) -> None:
        super().__init__(_Nobody(), pool)

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """The connection returns to its pool by itself once the answer has ended."""


def take_back_body(transfer_id: bytes) -> bytes:
    """The body of the call. An id of ours needs no escaping."""
    return b'{"transfer_id":"%b","reason":"taken_back"}' % transfer_id
