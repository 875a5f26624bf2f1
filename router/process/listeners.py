"""Listening sockets: one, or one per worker on the same port.

Workers listen with SO_REUSEPORT, so the kernel spreads connections evenly and wakes one process for each. The
supervisor holds every socket, too: what has been queued for a worker that dies waits for the next one in its slot.
"""

from __future__ import annotations

import socket

from router.contract.errors import AddressTaken

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        AddressTaken: it cannot be had.
    """
    return _listen(host, port, shared=False)


def listen_together(host: str, port: int, size: int) -> list[socket.socket]:
    """`size` listening sockets on one port; `port` 0 takes a free one for all.

    Raises:
        AddressTaken: it cannot be had, or another process listens there, whose connections these would share.
    """
    listen(host, port).close()
    listeners = [_listen(host, port, shared=True)]
    port = listeners[0].getsockname()[1]
    return listeners + [_listen(host, port, shared=True) for _ in range(size - 1)]


def _listen(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = infos[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise AddressTaken(
            f"Cannot listen on {host}:{port} ({error.strerror or error}); choose another --port or --host."
        ) from error
    listener.setblocking(False)
    return listener
