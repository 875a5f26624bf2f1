"""The trial of `tandem doctor --preflight`: a process that copies bytes through the fabric, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec

import msgspec

from router.cli.doctor_findings import Run
from router.cli.doctor_node import Trial

MODULE = "engine_shim.bench.trial"
WITHIN_S = 60.0
NIXL = ("nixl_cu12", "nixl_cu13")


class _Told(msgspec.Struct):
    runs: tuple[Run, ...] = ()
    error: str = ""


def try_fabric(backend: str, device: str, module: str = MODULE, within_s: float = WITHIN_S) -> Trial:
    """What became of the copy. Never raises: a process that crashes or hangs is what this is looking for."""
    if not any(find_spec(package) for package in NIXL):
        return Trial(backend, missing=True)
    words = [sys.executable, "-m", module, "--backend", backend, "--device", device]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=within_s)
    except subprocess.TimeoutExpired:
        return Trial(backend, error=f"It has not ended within {within_s:g} s. {_advice(backend)}")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Trial(backend, error=f"Its process died of {name} ({_last_line(done.stderr)}). {_advice(backend)}")
    try:
        told = msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=_Told)
    except msgspec.DecodeError:
        return Trial(backend, error=f"It ended without an answer ({_last_line(done.stderr)}). {_advice(backend)}")
    return Trial(backend, told.runs, f"{told.error} {_advice(backend)}" if told.error else "")


def _advice(backend: str) -> str:
    if backend == "LIBFABRIC":
        return "Driver, libfabric and this image must fit: take them from one release of the EFA installer."
    return "Look at what NIXL and UCX say with NIXL_LOG_LEVEL=INFO and UCX_LOG_LEVEL=info."


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
