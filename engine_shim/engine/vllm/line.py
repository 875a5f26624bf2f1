"""Line: a connection from one half of the connector to the shim's process, and the shim's listening socket with it."""

from __future__ import annotations

import os
import signal
import socket
import threading

from engine_shim.engine.vllm.messages import ToShim, frame


class Line:
    """Messages to the shim. When the shim is gone nobody hears them, and both processes end."""

    def __init__(self, path: str) -> None:
        """The shim has taken the call and sent its listening socket, which is held from now on."""
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.connect(path)
        _, held, _, _ = socket.recv_fds(self.connection, 1, 1)
        for descriptor in held:
            os.set_inheritable(descriptor, False)
        self._held = [socket.socket(fileno=descriptor) for descriptor in held]

    def let_go(self) -> None:
        """The listening socket is not held (any more)."""
        for one in self._held:
            one.close()
        self._held = []

    def end_with_it(self) -> None:
        """This process is killed as soon as the shim is gone. For a half to which nothing is said over this line."""
        threading.Thread(target=self._wait_for_end, name="tandem-line", daemon=True).start()

    def _wait_for_end(self) -> None:
        try:
            while self.connection.recv(1):
                continue
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, message: ToShim) -> None:
        """It is on its way, or nobody is there."""
        try:
            self.connection.sendall(frame(message))
        except OSError:
            return
