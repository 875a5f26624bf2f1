"""Where and with what a figure was measured: it stands in every result."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("tandem-router", "torch", "nixl-cu12", "uvloop", "httptools", "uvicorn", "msgspec", "transformers")
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, the versions, the commit."""

    cpu: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    load_average: float
    """Processes that ran or waited for a core, mean of the minute before."""
    system: str
    python: str
    packages: dict[str, str]
    commit: str | None
    """None where the code does not lie in a git repository; ends in `+` when tracked files were changed."""

    @property
    def is_busy(self) -> bool:
        """True when others took so much of it that figures will be noisy."""
        return self.load_average > self.cores / 2


def describe_machine() -> Machine:
    """Return this machine as it is now."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        load_average=os.getloadavg()[0],
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: found for name in _PACKAGES if (found := _version(name))},
        commit=_commit(),
    )


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    if not (_ROOT / ".git").exists():
        return None
    command = ("git", "-C", str(_ROOT), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
