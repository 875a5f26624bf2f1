"""Leg: one upstream call of one attempt.

A leg reports to its owner exactly once how it ended, unless it was cancelled; then it says nothing more.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

from router.contract.errors import Blame, LegBroken, LegError, LegTimeout, LegUnreachable
from router.legs.connection import Connection, Headers
from router.legs.pool import LegPool


class LegOwner(Protocol):
    """Whoever sent the legs."""

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Prefill has answered, well or badly."""

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """Decode's answer goes on (`leg.status`, `leg.headers` are set) or, with `ended`, is complete."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """The leg has ended without a whole answer."""


class Leg:
    """What both legs share: a request on its way, sent once more if a kept-alive connection closes in its face."""

    side: Blame
    """Of the class: which role is called."""

    # Most legs never change these: as defaults of the class they cost nothing to begin with.
    cancelled = False
    connection: Connection | None = None
    status = 0
    """HTTP status of the answer; 0 before its head has arrived."""
    headers: Headers = []  # noqa: RUF012 - replaced as a whole, never changed
    ended = False
    """The answer is complete."""
    connect_s = inf
    """Seconds that it waits for a connection, where that is shorter than the pool's own wait."""
    _again = False
    _connecting = False

    def __init__(self, owner: LegOwner, pool: LegPool) -> None:
        self.owner = owner
        self._pool = pool
        self._request = b""

    def send(self, request: bytes) -> None:
        """The request (head and body) is on its way, over a kept-alive connection where there is one."""
        self._request = request
        connection = self._pool.take()
        if connection is None:
            self._pool.want(self)
            if self.connect_s < inf:
                self._connecting = True
                asyncio.get_running_loop().call_later(self.connect_s, self._give_up_connecting)
        else:
            self.connection = connection
            connection.send(self, request)

    def cancel(self) -> None:
        """The engine sees its connection close; the owner hears nothing more."""
        self.cancelled = True
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def pause(self) -> None:
        """Hold the engine back: nothing more is read."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read again."""
        if self.connection is not None:
            self.connection.resume()

    def on_connected(self, connection: Connection) -> None:
        """Send over it."""
        self._connecting = False
        self.connection = connection
        connection.send(self, self._request)

    def on_unreachable(self, reason: str) -> None:
        """Tell the owner that no byte was sent."""
        self._connecting = False
        self.owner.on_leg_failed(
            self, LegUnreachable(f"The {self.side} instance cannot be reached: {reason}.", side=self.side)
        )

    def _give_up_connecting(self) -> None:
        if self._connecting and not self.cancelled:
            self.cancelled = True  # for whoever dials
            what = f"The {self.side} instance accepted no connection within {self.connect_s:g} s; allow more time."
            self.owner.on_leg_failed(self, LegTimeout(what, side=self.side, phase="connect"))

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """Take note of the answer; each side does its own with it."""
        raise NotImplementedError

    def on_lost(self, connection: Connection, reason: str) -> None:
        """Send once more when a kept-alive connection was closed before it gave any answer; else tell the owner.

        RFC 9112, 9.3.1 allows this for a connection that was being closed while idle; the second try always uses a new
        connection, so it cannot meet the same fate.
        """
        self.connection = None
        if connection.uses > 1 and not connection.answered and not self._again:
            self._again = True
            self._pool.dial(self)
            return
        self.owner.on_leg_failed(
            self, LegBroken(f"The {self.side} instance failed in the middle of its answer: {reason}.", side=self.side)
        )
