"""Real, unmodified vLLM servers on this machine's CPU, to be killed, frozen and started again.

They live in a folder of their own, which `make test-vllm` fills (`tests/support/vllm_install.py`).
float32, so that answers are exact but for near-ties; one thread and a small cache each, so that three fit into 8 GB.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.chaos_process import Victim

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("TANDEM_TEST_VLLM") or ROOT / ".tandem" / "vllm")
PROGRAM = FOLDER / "env" / "bin" / "vllm"
MODEL, SMALL = FOLDER / "model", FOLDER / "small"
SERVED_AS = "tiny"
CONNECTORS = {"push": "NixlPushConnector", "pull": "NixlConnector"}
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
FLAGS = (
    "--host 127.0.0.1 --dtype float32 --max-model-len 1024 --max-num-seqs 8 --num-gpu-blocks-override 64 "
    "--enforce-eager --enable-auto-tool-choice --tool-call-parser hermes"
)
PR_SET_PDEATHSIG = 1
LEASE_S = 30.0
"""kv_lease_duration, vLLM's own default: for so long prefill holds what nobody fetches."""


@dataclass
class VllmVictim(Victim):
    """A vLLM server: an API process, an engine and a worker, which are one process group.

    It has a session of its own, because Linux weighs sessions against each other. Compiling is off: it takes minutes of
    a small machine, and is not what is tested.
    """

    side_port: int = 0
    env: dict[str, str] = field(default_factory=dict)
    """Beside what all servers have."""

    def start(self) -> None:
        """It is starting; its output is appended to its log."""
        assert not self.runs
        own = {
            "PYTHONPATH": str(Path(__file__).parent / "vllm_pace"),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            "TORCH_COMPILE_DISABLE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | own | self.env,
                preexec_fn=_leave_session(os.getpid()),
            )
        self.starts.append(time.monotonic())

    def signal(self, number: signal.Signals) -> None:
        if self.runs and number is not signal.SIGTERM:
            os.killpg(self.pid, number)
        else:
            super().signal(number)  # its API process ends the others in good order

    def stop(self) -> None:
        """It has ended, by SIGTERM if that suffices, and so has every process of its group."""
        super().stop()
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _leave_session(parent_pid: int) -> Callable[[], None]:
    """What a server runs before it becomes vLLM: it leads a session of its own, and ends when this process does."""
    libc = ctypes.CDLL(None, use_errno=True)

    def ask_the_kernel() -> None:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            os._exit(1)

    return ask_the_kernel


def vllm_argv(port: int, role: str = "", mode: str = "", model: Path = SMALL) -> tuple[str, ...]:
    """The command of one server. Without a role it stands alone, without a connector."""
    argv = (str(PROGRAM), "serve", str(model), "--served-model-name", SERVED_AS, "--port", str(port))
    transfer: tuple[str, ...] = ()
    if role:
        config = {
            "kv_connector": CONNECTORS[mode],
            "kv_role": KV_ROLES[role],
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"num_threads": 1, "kv_lease_duration": LEASE_S},
        }
        transfer = ("--kv-transfer-config", json.dumps(config))
    return (*argv, *FLAGS.split(), *transfer)


def missing() -> str | None:
    """What of it is not there, or None."""
    for path in (PROGRAM, MODEL / "config.json", SMALL / "config.json"):
        if not path.exists():
            return f"looked for {path}; `make test-vllm` installs it (3 GB), or name its folder by TANDEM_TEST_VLLM"
    return None
