"""Timeline: virtual time, and processes that can be stopped and killed in it.

A call belongs to the process that it happens in. Calls of a dead process are dropped; those of a stopped one (SIGSTOP)
pile up, as timers and socket buffers do, and run when it goes on.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

_Call = tuple[bool, Callable[..., None], tuple[object, ...]]
_Entry = tuple[float, int, "Process | None", bool, Callable[..., None], tuple[object, ...]]


class Process:
    """Something that runs, may be stopped, and dies once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped = False
        self.piled: list[_Call] = []
        """What has come due while it was stopped, oldest first; the flag marks timers."""

    @property
    def runs(self) -> bool:
        """True when it is neither dead nor stopped."""
        return not (self.dead or self.stopped)

    def on_killed(self) -> None:
        """It is dead; nothing of its memory is left."""


class Timeline:
    """All that will happen, in order of time; equal seeds give equal orders."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.num_events = 0
        self.rng = rng
        self._queue: list[_Entry] = []

    def after(self, delay_s: float, process: Process | None, call: Callable[..., None], *arguments: object) -> None:
        """`call(*arguments)` happens in `process` after `delay_s` seconds: something arrives there."""
        self.num_events += 1
        heapq.heappush(self._queue, (self.now + delay_s, self.num_events, process, False, call, arguments))

    def timer(self, delay_s: float, process: Process | None, call: Callable[..., None], *arguments: object) -> None:
        """As `after`, for what the process has set itself."""
        self.num_events += 1
        heapq.heappush(self._queue, (self.now + delay_s, self.num_events, process, True, call, arguments))

    def stop(self, process: Process) -> None:
        """The process stands still."""
        process.stopped = True

    def resume(self, process: Process) -> None:
        """The process goes on. What has piled up runs at once: in order, or timers first, or timers last."""
        process.stopped = False
        piled, process.piled = process.piled, []
        order = self.rng.randrange(3)
        if order:
            piled.sort(key=lambda call: call[0] is (order == 1))
        for is_timer, call, arguments in piled:
            if process.stopped:
                process.piled.append((is_timer, call, arguments))
            elif not process.dead:
                call(*arguments)

    def run(self, until_s: float, is_over: Callable[[], bool]) -> None:
        """Let everything happen until `until_s`, until nothing is left, or until a look finds it over."""
        queue = self._queue
        look_at = 0.0
        while queue:
            self.now, _, process, is_timer, call, arguments = heapq.heappop(queue)
            if self.now > until_s:
                return
            if self.now >= look_at:
                look_at = self.now + 1.0
                if is_over():
                    return
            if process is None:
                call(*arguments)
            elif process.stopped:
                process.piled.append((is_timer, call, arguments))
            elif not process.dead:
                call(*arguments)
