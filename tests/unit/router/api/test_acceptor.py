import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing

import pytest
import uvloop

from router.api.acceptor import AT_ONCE, Acceptor
from router.process.listeners import listen


class Guest(asyncio.Protocol):
    def __init__(self, among: list[asyncio.Transport]) -> None:
        self._among = among

    def connection_made(self, transport):
        self._among.append(transport)


def waiting(listener: socket.socket, count: int) -> list[socket.socket]:
    """Clients that the kernel has let connect, and nobody has accepted."""
    return [socket.create_connection(listener.getsockname(), timeout=10) for _ in range(count)]


@pytest.fixture
def run() -> Callable[[Coroutine[None, None, None]], None]:
    """In the event loop that the router runs in."""

    def run_(scene: Coroutine[None, None, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(scene, 20))

    return run_


def test_all_who_wait_are_let_in_but_not_too_many_at_once(run):
    async def scene():
        with closing(listen("127.0.0.1", 0)) as listener:
            acceptor, inside = Acceptor([listener], None), []
            clients = waiting(listener, AT_ONCE + 3)
            acceptor.accept_waiting(lambda: Guest(inside))
            while len(inside) < AT_ONCE:
                await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(inside) == AT_ONCE
            acceptor.accept_waiting(lambda: Guest(inside))
            while len(inside) < AT_ONCE + 3:
                await asyncio.sleep(0)
            clients[0].sendall(b"x")
            assert inside[0].get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for transport, client in zip(inside, clients, strict=True):
                transport.abort()
                client.close()

    run(scene())


def test_nobody_waits_or_nobody_listens_any_more(run):
    async def scene():
        listener = listen("127.0.0.1", 0)
        acceptor = Acceptor([listener], None)
        acceptor.accept_waiting(lambda: pytest.fail("nobody has come"))
        listener.close()
        acceptor.accept_waiting(lambda: pytest.fail("nobody can come"))
        await asyncio.sleep(0)

    run(scene())
