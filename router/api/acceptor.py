"""Acceptor: lets in at once all clients that wait at the door.

uvloop accepts one connection in each turn of the event loop. A turn that serves hundreds of requests takes tens of
milliseconds, so the last of hundreds of new clients would wait for seconds. Here each connection that is accepted
brings along those that wait behind it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

LOG = logging.getLogger("tandem.router")

AT_ONCE = 64
"""More of them wait for the next turn, since those who are in must not starve either."""

Factory = Callable[[], asyncio.Protocol]


class Acceptor:
    """Of the listeners of one server."""

    def __init__(self, listeners: Sequence[socket.socket], tls: ssl.SSLContext | None) -> None:
        """`listeners` do not block."""
        self._listeners = listeners
        self._tls = tls
        self._arriving: set[asyncio.Task[object]] = set()

    def accept_waiting(self, factory: Factory) -> None:
        """Who waits is on the way in, with a protocol of `factory`."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            for _ in range(AT_ONCE):
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    break  # nobody waits; or accepting fails, which uvloop will see and tell
                task: asyncio.Task[object] = loop.create_task(self._let_in(factory, accepted))
                self._arriving.add(task)
                task.add_done_callback(self._arriving.discard)

    async def _let_in(self, factory: Factory, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(factory, accepted, ssl=self._tls)
        except OSError as error:  # it has left, or its TLS is not ours
            accepted.close()
            LOG.debug("a client did not get in: %s", error)
