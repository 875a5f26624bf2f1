"""MockEngine: an engine that computes nothing, answers as told, and fails as told.

It speaks the shim's contract on real sockets (identity at /kv/instance, hand-over parameters checked on both legs) and
costs little, so that a benchmark measures the router and a test can place any fault where it wants it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field, replace

from router.api.acceptor import Acceptor
from router.bench.mock_behaviour import Behaviour, Fault, Seen
from router.bench.mock_connection import MockConnection
from router.contract.ids import Epoch, InstanceId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Mode, Role
from router.contract.kv import KVLayout
from router.contract.seal import Seal

BACKLOG = 2048
"""Hundreds of connections may be dialled at once; one that overflows the queue waits a second for its next try."""

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_tokens=16, num_blocks=1, dtype="float32")


@dataclass(slots=True)
class MockEngine:
    """One engine. `behaviour` may be changed at any time and holds from the next request on."""

    role: Role = Role.BOTH
    name: str = "mock"
    model: str = "m"
    epoch: int = 1
    modes: tuple[Mode, ...] = (Mode.PUSH, Mode.PULL)
    behaviour: Behaviour = field(default_factory=Behaviour)
    endpoints: tuple[str, ...] = ("/tokenize", "/detokenize")
    lacks: tuple[str, ...] = ()
    records: bool = True
    """Keep what was seen; off in benchmarks."""
    seen: list[Seen] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)
    """Transfers that a router has taken back, in order."""
    running: dict[str, MockConnection] = field(default_factory=dict)
    """What is open, by transfer id, as far as `records`."""
    seal: Seal = field(default_factory=Seal)
    """A take-back that is not sealed with this key is refused."""
    api_key: str = ""
    """Whatever comes without this key is refused with 401; empty: none is wanted."""
    tls: ssl.SSLContext | None = None
    """Listen with TLS."""
    num_open: int = 0
    """Requests that have been read and not been answered in full."""
    url: str = ""
    connections: set[MockConnection] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> str:
        """Listening on loopback; returns the URL."""
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        listener.setblocking(False)
        acceptor = Acceptor((listener,), self.tls)

        def make_with_others() -> MockConnection:
            acceptor.accept_waiting(lambda: MockConnection(self))
            return MockConnection(self)

        self._server = await loop.create_server(make_with_others, sock=listener, ssl=self.tls, backlog=BACKLOG)
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def stop(self) -> None:
        """No longer listening; open connections are cut."""
        if self._server is not None:
            self._server.close()
            for connection in tuple(self.connections):
                connection.cut()
            await self._server.wait_closed()

    @property
    def instance(self) -> Instance:
        """Who it says it is."""
        instance_id, epoch = InstanceId(self.name), Epoch(self.epoch)
        engine_id = engine_id_of(instance_id, epoch)
        identity = KVIdentity(engine_id, "127.0.0.1", 1, LAYOUT, "mock", self.modes, takes_back=True)
        return Instance(
            instance_id,
            self.role,
            epoch,
            self.url,
            self.model,
            4096,
            identity,
            endpoints=self.endpoints,
            lacks=self.lacks,
        )

    def take_fault(self) -> Fault:
        """The fault for the next answer; one that is limited in `times` is used up."""
        behaviour = self.behaviour
        if behaviour.fault is Fault.NONE or behaviour.times == 0:
            return Fault.NONE
        if behaviour.times > 0:
            self.behaviour = replace(behaviour, times=behaviour.times - 1)
        return behaviour.fault
