"""LegPool: the kept-alive connections to one engine.

Last in, first out: the warmest connection is used again and surplus ones grow old. `close_idle`, which is called a few
times a second, closes those that have been idle longer than `idle_for_s`; the limit lies that much below the engine's
own keep-alive that a connection is not picked up in the moment in which the engine closes it (uvicorn's is 5 s).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass
from time import monotonic

from router.contract.engine_url import read_engine_url
from router.contract.errors import BadSettings
from router.legs.access import EngineAccess
from router.legs.connection import Connection
from router.legs.dialling import Dialler, Dialling


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How long a pool waits."""

    connect_s: float = 2.0
    idle_for_s: float = 4.0


_PLAIN = EngineAccess()


class LegPool:
    """Connections to one engine. Belongs to the event loop that first dials."""

    __slots__ = (
        "__weakref__",
        "_access",
        "_admitted",
        "_at",
        "_dialling",
        "_idle",
        "_limits",
        "_line",
        "_live",
        "_url",
        "own_lines",
    )

    def __init__(self, url: str, limits: PoolLimits, access: EngineAccess = _PLAIN) -> None:
        """`url` is an Instance's: `http://host:port` or `https://host:port`, IPv6 hosts in brackets.

        Raises:
            BadSettings: it is none of that form, or no engine may be there.
        """
        self._at = read_engine_url(url)
        if not access.hosts.admit(self._at.host):
            raise BadSettings(f"No engine may be at {url!r}; engine_hosts says where they may be.")
        self._limits = limits
        self._idle: list[Connection] = []
        self._live: set[Connection] = set()
        self._dialling = Dialling(self._connect, self.put, limits.connect_s)
        self._line = self._dialling.line
        self._url, self._access = url, access
        self._admitted = ""
        """The address to which the last dial led; an engine may be there."""
        self.own_lines = b""
        """Header lines of every request to this engine: Host, and the key that it wants."""
        self.take_key()
        access.followers.add(self)

    @property
    def num_live(self) -> int:
        """Connections that are open, idle ones included."""
        return len(self._live)

    @property
    def num_idle(self) -> int:
        """Connections that wait to be used again."""
        return len(self._idle)

    @property
    def num_busy(self) -> int:
        """Connections that carry a leg or are being dialled."""
        return len(self._live) - len(self._idle) + self._dialling.num_busy

    def take_key(self) -> None:
        """Requests carry the key that the engine wants from here on."""
        lines = {"host": self._at.authority} | self._access.headers(self._url)
        self.own_lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("ascii")

    def take(self) -> Connection | None:
        """A kept-alive connection that is fit for a request, or None: `want` one."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    def put(self, connection: Connection) -> None:
        """The connection may be used again: by who waits for one, or by a leg to come."""
        if self._line and connection.usable and self._dialling.serve(connection):
            return
        connection.idle_since = monotonic()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is dead."""
        self._live.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def want(self, leg: Dialler) -> None:
        """`leg` hears on_connected or on_unreachable, never before this call has returned (see Dialling)."""
        self._dialling.want(leg)

    def dial(self, leg: Dialler) -> None:
        """The same, but for a new connection: no engine has closed it yet.

        Once a leg is cancelled it hears nothing, and the connection, when it comes, waits for another leg.
        """
        self._dialling.dial(leg)

    async def _connect(self) -> Connection | str:
        loop, at, access = asyncio.get_running_loop(), self._at, self._access
        tls = access.context() if at.scheme == "https" else None
        name = (access.server_name or at.host) if tls is not None else None
        try:
            async with asyncio.timeout(self._limits.connect_s):
                transport, connection = await loop.create_connection(
                    lambda: Connection(self), at.host, at.port, ssl=tls, server_hostname=name
                )
        except TimeoutError:
            raise
        except ssl.SSLError as error:
            return f"TLS failed ({error.reason or error})"
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
            number = getattr(error, "errno", None)
            return os.strerror(number) if number else "it accepts no connections"
        peer = transport.get_extra_info("peername")
        if peer is None:
            return "it closed the connection at once"
        if peer[0] != self._admitted and not access.hosts.admit_address(at.host, peer[0]):
            transport.abort()
            return "no engine may be at the address to which its name leads (engine_hosts)"
        self._admitted = peer[0]
        self._live.add(connection)
        return connection

    def close_idle(self) -> None:
        """Connections that have been idle too long are closed; the sweep calls this now and then."""
        oldest = monotonic() - self._limits.idle_for_s
        stale = [connection for connection in self._idle if connection.idle_since < oldest]
        for connection in stale:
            self._idle.remove(connection)
            connection.abort()

    def close(self) -> None:
        """Every connection and every dial in progress is ended."""
        self._dialling.close()
        for connection in tuple(self._live):
            connection.abort()
        self._idle.clear()
