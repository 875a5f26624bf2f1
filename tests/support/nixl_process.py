"""A NIXL agent in a process of its own (`nixl_agent.py`), driven over pipes by the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class NixlProcess:
    """Starts `python -m tests.support.nixl_agent NAME SIZE`; `ask` sends a command and waits for its answer."""

    def __init__(self, name: str, size: int, environ: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nixl_agent", name, str(size)],
            cwd=ROOT,
            env=os.environ | {"UCX_LOG_LEVEL": "fatal"} | (environ or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.name = name
        hello = self._read()
        self.metadata = b64decode(hello["metadata"])
        self.base, self.size = hello["base"], size

    def ask(self, verb: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"verb": verb} | arguments) + "\n")
        self.process.stdin.flush()
        return self._read()

    def meet(self, other: NixlProcess) -> None:
        self.ask("meet", metadata=b64encode(other.metadata).decode())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError(f"{self.name} ended with status {self.process.wait()}")
