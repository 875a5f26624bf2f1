"""Leftover: a prefill leg that nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable

from router.contract.errors import LegError
from router.core.burden import Burden
from router.legs.connection import Headers
from router.legs.leg import Leg


class Leftover:
    """Owns the leg until it ends, then puts its burden down; a leg that takes too long is cancelled."""

    __slots__ = ("_among", "_burden", "_leg", "_on_failed", "_tokens", "due_at")

    def __init__(
        self, leg: Leg, burden: Burden, tokens: int, due_at: float, on_failed: Callable[[], object] | None = None
    ) -> None:
        """`on_failed` is called once if prefill does not do its part."""
        self._leg = leg
        self._burden = burden
        self._tokens = tokens
        self.due_at = due_at
        self._on_failed = on_failed
        self._among: set[Leftover] | None = None

    def watch(self, leftovers: set[Leftover]) -> None:
        """The leg reports here from now on, and this is one of `leftovers` until it ends."""
        self._among = leftovers
        self._leg.owner = self
        leftovers.add(self)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """It has finished, or refused."""
        self._end(failed=not 200 <= status < 300)

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """A prefill leg has none."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """It has failed."""
        self._end(failed=True)

    def on_due(self, now: float) -> None:
        """It takes too long."""
        self._leg.cancel()
        self._end(failed=True)

    def _end(self, *, failed: bool) -> None:
        if self._among is None:
            return
        self._among.discard(self)
        self._among = None
        self._burden.give(self._tokens)
        if failed and self._on_failed is not None:
            self._on_failed()
