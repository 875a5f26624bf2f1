"""How tests start our shim in front of vLLM: by the Python of the environment that has vLLM, which has no Tandem."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.vllm_processes import FOLDER, ROOT, SMALL, vllm_argv

PYTHON = FOLDER / "env" / "bin" / "python"
PYTHONPATH = os.pathsep.join((str(ROOT), str(FOLDER / "shim")))
"""Tandem itself, and the few packages that vLLM does not bring."""


def shim_argv(port: int, role: str, flags: str = "", model: Path = SMALL) -> tuple[str, ...]:
    """The command of one shim and its vLLM, which are as `vllm_argv` would start it alone."""
    _, _, *engine = vllm_argv(port, model=model)
    for own in ("--port", "--host"):
        at = engine.index(own)
        del engine[at : at + 2]
    shim = ("--engine", "vllm", "--role", role, "--port", str(port), *flags.split())
    return ("env", f"PYTHONPATH={PYTHONPATH}", str(PYTHON), "-m", "engine_shim", *shim, "--", *engine)
