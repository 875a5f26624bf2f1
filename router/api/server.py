"""Server: uvicorn's, with an end in three steps, so that nobody is cut off whom a load balancer still sends here.

    SIGTERM                       /readyz answers 503; requests are served as before
    pre_stop_s later              new requests get 503 and `Connection: close`; streams go on
    when nothing runs any more,   the process ends; what still runs after grace_s more seconds ends with an error,
    or grace_s later              streams with an event

pre_stop_s is the time in which load balancers take a router that is not ready out of their lists. SIGINT skips that.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn

from router.api.acceptor import Acceptor
from router.driver.router import Router

_AFTER_GRACE_S = 1
"""Connections that are told to close get so long to do it."""


class Server(uvicorn.Server):
    """Serves one Router until SIGTERM or SIGINT."""

    def __init__(self, config: uvicorn.Config, router: Router, pre_stop_s: float, grace_s: float) -> None:
        super().__init__(config)
        self._router = router
        self._pre_stop_s = pre_stop_s
        self._grace_s = grace_s
        self._drains_at = 0.0
        """Monotonic seconds; 0.0 before the signal."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listening; every connection that comes in brings along all that wait behind it."""
        config = self.config
        acceptor, make = Acceptor(sockets or (), config.ssl), config.http_protocol_class

        def make_with_others(**given: Any) -> asyncio.Protocol:  # noqa: ANN401 - uvicorn's own arguments
            acceptor.accept_waiting(functools.partial(make, **given))
            return make(**given)

        config.http_protocol_class = make_with_others  # type: ignore[assignment]  # it is only called
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal has come; `on_tick` does the rest."""
        if sig == signal.SIGTERM and not self.should_exit:
            if not self._drains_at:
                self._captured_signals.append(sig)
                self.leave()
            return
        super().handle_exit(sig, frame)

    def leave(self) -> None:
        """The end has begun, in its three steps."""
        if not self._drains_at:
            self._router.leaving = True
            self._drains_at = monotonic() + self._pre_stop_s

    async def on_tick(self, counter: int) -> bool:
        """True: the server ends. Called ten times a second."""
        if self._drains_at and not self.should_exit:
            self._leave(monotonic())
        return await super().on_tick(counter)

    def _leave(self, now: float) -> None:
        router = self._router
        if now < self._drains_at:
            return
        router.drain()
        late = now >= self._drains_at + self._grace_s
        if late:
            router.abort()
        if late or not router.live:
            self.config.timeout_graceful_shutdown = _AFTER_GRACE_S
            self.should_exit = True
