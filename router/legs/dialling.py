"""Dialling: how a leg without a connection gets one, be it new or one that another leg has done with.

Legs wait in a line, and each connection goes to who has waited longest. There are as many dials as legs wait, but at
most MAX_DIALS at a time: what hundreds of requests need that come at once is freed by others sooner than it is dialled,
and a new connection costs about as much as a request. A dial that fails fails the leg that has waited longest; nobody
waits for longer than `wait_s` while the line stands still. A moving line is no fault of the engine, and how long a leg
may stand in it is for its other deadlines to say.

Neither is a pause of this process the engine's fault: when it goes on, timers are due before anything is read that came
meanwhile. So a time that was far overrun is given once more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Protocol

from router.legs.connection import Connection, Listener

MAX_DIALS = 32
STALLED_S = 0.1
"""A timer that comes so late tells of a pause of this process."""

Connect = Callable[[], Coroutine[None, None, Connection | str]]
"""A new connection, or why there is none; raises TimeoutError when that is not known in time."""


class Dialler(Listener, Protocol):
    """A leg that waits for a connection."""

    cancelled: bool

    def on_connected(self, connection: Connection) -> None:
        """A connection is there; send."""

    def on_unreachable(self, reason: str) -> None:
        """There will be none."""


class Dialling:
    """The dials of one pool, and who waits for them. No leg that has been cancelled hears anything."""

    __slots__ = (
        "_connect",
        "_dials",
        "_due",
        "_for_line",
        "_keep",
        "_moved_at",
        "_spared",
        "_timer",
        "_wait_s",
        "line",
    )

    def __init__(self, connect: Connect, keep: Callable[[Connection], None], wait_s: float) -> None:
        """`keep` takes connections that nobody waits for."""
        self._connect = connect
        self._keep = keep
        self._wait_s = wait_s
        self.line: deque[tuple[float, Dialler]] = deque()
        """Since when each leg waits, monotonic seconds, and the leg."""
        self._moved_at = 0.0
        self._dials: set[asyncio.Task[None]] = set()
        self._for_line = 0
        """Dials whose connection goes to the line."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._spared = False
        """The line has been given its time once more."""

    @property
    def num_busy(self) -> int:
        """Dials in progress."""
        return len(self._dials)

    def want(self, leg: Dialler) -> None:
        """`leg` hears of the first connection that is there for it, or of none, after this call has returned."""
        now = monotonic()
        self.line.append((now, leg))
        if self._timer is None:
            self._set_timer(now + self._wait_s, now)
        self._dial_more()

    def dial(self, leg: Dialler) -> None:
        """The same, of a new connection of its own."""
        self._start(self._dial_for(leg))

    def serve(self, connection: Connection) -> bool:
        """True: the connection is that of the leg that has waited longest; False: nobody waits."""
        leg = self._next()
        if leg is None:
            return False
        self._moved_at, self._spared = monotonic(), False
        leg.on_connected(connection)
        return True

    def close(self) -> None:
        """No dial is in progress, and nobody waits; nobody is told."""
        for task in self._dials:
            task.cancel()
        self.line.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> Dialler | None:
        while self.line:
            _, leg = self.line.popleft()
            if not leg.cancelled:
                return leg
        return None

    def _dial_more(self) -> None:
        while self._for_line < min(MAX_DIALS, len(self.line)):
            self._for_line += 1
            self._start(self._dial_for_line())

    def _start(self, dial: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(dial)
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _dial_for(self, leg: Dialler) -> None:
        try:
            made = await self._made()
        except TimeoutError:
            made = self._too_late()
        if isinstance(made, str):
            if not leg.cancelled:
                leg.on_unreachable(made)
        elif leg.cancelled:
            self._keep(made)
        else:
            leg.on_connected(made)

    async def _made(self) -> Connection | str:
        began_at = monotonic()
        try:
            return await self._connect()
        except TimeoutError:
            if monotonic() < began_at + self._wait_s + STALLED_S:
                raise
        return await self._connect()

    async def _dial_for_line(self) -> None:
        try:
            made = await self._made()
        except TimeoutError:
            made = None  # whoever has waited for so long hears it from the timer
        finally:
            self._for_line -= 1
        if isinstance(made, str):
            leg = self._next()
            if leg is not None:
                leg.on_unreachable(made)
        elif made is not None and not self.serve(made):
            self._keep(made)
        self._dial_more()

    def _set_timer(self, due: float, now: float) -> None:
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(due - now, self._on_late)

    def _on_late(self) -> None:
        """Who has waited for too long waits no longer."""
        self._timer = None
        now = monotonic()
        if now > self._due + STALLED_S and not self._spared:
            self._spared = True
            self._set_timer(now + self._wait_s, now)
            return
        self._spared = False
        while self.line and self._ends_at() <= now:
            _, leg = self.line.popleft()
            if not leg.cancelled:
                leg.on_unreachable(self._too_late())
        if self.line:
            self._set_timer(self._ends_at(), now)

    def _ends_at(self) -> float:
        """Until when the first in the line waits, if nothing comes."""
        return max(self.line[0][0], self._moved_at) + self._wait_s

    def _too_late(self) -> str:
        return f"it did not accept a connection within {self._wait_s:g} s"
