"""Processes that are killed, frozen and started again on the same address."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from router.store.embedded import EmbeddedStore, end_with_parent
from tests.support.chaos_proxy import SilentProxy

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@dataclass
class Victim:
    """One process of the site. It ends with this process, whatever happens."""

    name: str
    role: str
    """prefill, decode, router, or store."""
    url: str
    """Where this process reaches it directly, past any proxy."""
    argv: tuple[str, ...]
    log_path: Path
    proxy: SilentProxy | None = None
    starts: list[float] = field(default_factory=list)
    """Monotonic seconds of each start."""
    is_well: bool = False
    """It has been seen to serve since it was last hurt."""
    frozen_at: list[tuple[float, float]] = field(default_factory=list)
    """Monotonic seconds from which and to which it was frozen."""

    def __post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """It is starting; its output is appended to its log."""
        assert not self.runs
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                preexec_fn=end_with_parent(os.getpid()),
            )
        self.starts.append(time.monotonic())

    def signal(self, number: signal.Signals) -> None:
        if self.runs:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """It is dead, without warning."""
        if self.proxy is not None:
            self.proxy.refuse()
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        if self.proxy is not None:
            self.proxy.reset()

    def freeze(self) -> None:
        self.frozen_at.append((time.monotonic(), float("inf")))
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        if self.frozen_at:
            self.frozen_at[-1] = (self.frozen_at[-1][0], time.monotonic())

    def fill_disk(self, *, full: bool) -> None:
        """With `full`, no file that it writes grows beyond its log's present size: a write fails as on a full disk."""
        limit = (self.log_path.stat().st_size, resource.RLIM_INFINITY) if full else UNLIMITED
        if self.runs:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, limit)

    def stop(self) -> None:
        """It has ended, by SIGTERM if that suffices."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self, num_lines: int = 15) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-num_lines:]
        return "\n".join(f"  {self.name} | {line}" for line in lines)


@dataclass
class StoreVictim:
    """The store, kept in memory: a kill loses everything."""

    store: EmbeddedStore
    name: str = "store"
    role: str = "store"
    is_well: bool = True

    @property
    def runs(self) -> bool:
        return self.store.pid != 0

    def start(self) -> None:
        self.store.start()

    def kill(self) -> None:
        self.store.kill()

    def freeze(self) -> None:
        os.kill(self.store.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.store.pid:
            os.kill(self.store.pid, signal.SIGCONT)
