"""Leftover: a prefill leg that nobody waits for any more."""

from __future__ import annotations

from router.contract.errors import LegError
from router.core.burden import Burden
from router.legs.connection import Headers
from router.legs.leg import Leg


class Leftover:
    """Owns the leg until it ends, then puts its burden down; a leg that takes too long is cancelled."""

    __slots__ = ("_among", "_burden", "_leg", "_tokens", "due_at")

    def __init__(self, leg: Leg, burden: Burden, tokens: int, due_at: float) -> None:
        self._leg = leg
        self._burden = burden
        self._tokens = tokens
        self.due_at = due_at
        self._among: set[Leftover] | None = None

    def watch(self, leftovers: set[Leftover]) -> None:
        """The leg reports here from now on, and this is one of `leftovers` until it ends."""
        self._among = leftovers
        self._leg.owner = self
        leftovers.add(self)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """It has finished."""
        self._end()

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """A prefill leg has none."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """It has failed, which harms nobody."""
        self._end()

    def on_due(self, now: float) -> None:
        """It takes too long."""
        self._leg.cancel()
        self._end()

    def _end(self) -> None:
        if self._among is not None:
            self._among.discard(self)
            self._among = None
            self._burden.give(self._tokens)
