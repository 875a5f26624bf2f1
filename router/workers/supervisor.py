"""Supervisor: the process that starts workers by fork, starts a dead one again, and passes signals on.

It serves nothing and runs no thread, so a fork is sound, costs milliseconds, and shares what has been imported. It
waits for signals with sigtimedwait, so nothing ever interrupts it halfway. A worker dies with it, however it dies.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from time import monotonic
from typing import NoReturn

from router.contract.errors import WorkersDie
from router.store.embedded import end_with_parent
from router.workers.respawn import YOUNG_DEATHS, Respawn

LOG = logging.getLogger("tandem.router")

UNUSABLE = 2
"""Exit status of a worker that would fail again: the operator must change the set-up."""

_ENDS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_ENDS, signal.SIGHUP, signal.SIGCHLD)


class Supervisor:
    """Keeps `size` workers running until it is told to end."""

    def __init__(self, size: int, work: Callable[[int], int]) -> None:
        """`work(slot)` is a worker's whole life, slots from 0; it returns the exit status."""
        self._size = size
        self._work = work
        self._respawn = Respawn()
        self._slots: dict[int, tuple[int, float]] = {}
        """Process id -> slot, monotonic seconds of its start."""
        self._due: dict[int, float] = {}
        """Slot -> monotonic seconds at which its next worker starts."""
        self._ending = False
        self._failure: WorkersDie | None = None
        self._status = 0

    def run(self) -> int:
        """Return once all workers have ended: 0 after SIGTERM or SIGINT, or UNUSABLE when a worker says so.

        Raises:
            WorkersDie: workers die again and again.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        self._due = dict.fromkeys(range(self._size), monotonic())
        while self._slots or self._due:
            for slot in [slot for slot, at in self._due.items() if at <= monotonic()]:
                del self._due[slot]
                self._start(slot)
            self._wait()
        if self._failure is not None:
            raise self._failure
        return self._status

    def _wait(self) -> None:
        """Until something has happened, or the next worker is due."""
        left_s = min(self._due.values(), default=monotonic() + 3600.0) - monotonic()
        came = signal.sigtimedwait(_WATCHED, max(left_s, 0.0))
        if came is None:
            return
        if came.si_signo == signal.SIGCHLD:
            self._bury()
        elif came.si_signo == signal.SIGHUP:
            self._tell(signal.SIGHUP)
        else:
            self._end()

    def _start(self, slot: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        join_parent = end_with_parent(os.getpid())
        pid = os.fork()
        if pid == 0:
            join_parent()
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # for a worker that does not reload its settings
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            _live(self._work, slot)
        self._slots[pid] = slot, monotonic()
        LOG.info("worker %d runs as process %d", slot, pid)

    def _bury(self) -> None:
        """Every worker that has died is taken note of; one signal may stand for several."""
        while self._slots:
            pid, how = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            slot, since = self._slots.pop(pid)
            if not self._ending:
                self._on_death(slot, os.waitstatus_to_exitcode(how), monotonic() - since)

    def _on_death(self, slot: int, status: int, lived_s: float) -> None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        if status == UNUSABLE:
            self._status = UNUSABLE
            self._end()
            return
        delay_s = self._respawn.delay_s(slot, lived_s)
        if delay_s is None:
            self._failure = WorkersDie(
                f"Worker {slot} has died {YOUNG_DEATHS} times in a row soon after its start (last: {how}); "
                "the lines above say why."
            )
            self._end()
            return
        LOG.warning("worker %d has died after %.1f s (%s); the next one starts in %.1f s", slot, lived_s, how, delay_s)
        self._due[slot] = monotonic() + delay_s

    def _end(self) -> None:
        """Workers end in order, and no more are started."""
        self._ending = True
        self._due.clear()
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for pid in self._slots:
            os.kill(pid, number)  # a dead one is a zombie until it is buried, so its id is nobody else's


def _live(work: Callable[[int], int], slot: int) -> NoReturn:
    """The life of a worker, which must not return into its parent's code."""
    status: object = 1
    try:
        status = work(slot)
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:  # noqa: BLE001 - the one boundary of this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)
