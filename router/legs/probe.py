"""Probe: asks an engine whether it takes requests, over the connections that its legs use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.contract.errors import Blame, LegError
from router.legs.connection import Connection, Headers
from router.legs.leg import Leg
from router.legs.pool import LegPool


class Probe(Leg):
    """One GET. `on_end` is called once with the HTTP status, or with 0 when there was none in time."""

    side = Blame.PREFILL  # whichever: nobody reads it

    def __init__(self, pool: LegPool, on_end: Callable[[int], None]) -> None:
        super().__init__(self, pool)
        self._on_end: Callable[[int], None] | None = on_end
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, path: bytes, timeout_s: float) -> None:
        """The question is on its way."""
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        self.send(b"GET %b HTTP/1.1\r\n%baccept: */*\r\n\r\n" % (path, self._pool.own_lines))

    def _time_out(self) -> None:
        self.cancel()
        self._end(0)

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """Of the answer only the status counts."""
        if ended:
            self.ended = True
            self.connection = None
            self._end(connection.status)

    def _end(self, status: int) -> None:
        on_end, self._on_end = self._on_end, None
        if self._timer is not None:
            self._timer.cancel()
        if on_end is not None:
            on_end(status)

    # LegOwner, of itself.

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A probe is no prefill leg."""

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """Nor a decode leg."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """There will be no answer."""
        self._end(0)
