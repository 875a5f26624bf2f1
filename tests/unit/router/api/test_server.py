import asyncio
import signal
import socket

import pytest
import uvicorn
import uvloop

from router.api import server as module
from router.api.server import Server
from router.process.listeners import listen


class Router:
    def __init__(self):
        self.leaving, self.live, self.done = False, {"exchange"}, []

    def drain(self):
        self.done.append("drain")

    def abort(self):
        self.done.append("abort")
        self.live.clear()


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def made(pre_stop_s=5.0, grace_s=20.0) -> tuple[Server, Router]:
    router = Router()
    return Server(uvicorn.Config(lambda: None, log_config=None), router, pre_stop_s, grace_s), router


async def test_sigterm_lets_others_know_first_then_refuses_then_ends(clock):
    server, router = made()
    assert not await server.on_tick(1)
    server.handle_exit(signal.SIGTERM, None)
    assert router.leaving and not await server.on_tick(1) and router.done == []
    clock[0] += 4.9
    server.handle_exit(signal.SIGTERM, None)
    assert not await server.on_tick(1) and router.done == [], "a second signal starts nothing anew"
    clock[0] += 0.2
    assert not await server.on_tick(1) and router.done == ["drain"]
    router.live.clear()
    assert await server.on_tick(1) and "abort" not in router.done
    assert server._captured_signals == [signal.SIGTERM]


async def test_what_outlives_the_grace_is_ended(clock):
    server, router = made()
    server.handle_exit(signal.SIGTERM, None)
    clock[0] += 25.0
    assert await server.on_tick(1)
    assert router.done == ["drain", "abort"]
    assert server.config.timeout_graceful_shutdown == 1


async def test_sigint_ends_at_once(clock):
    server, router = made()
    server.handle_exit(signal.SIGTERM, None)
    server.handle_exit(signal.SIGINT, None)
    assert await server.on_tick(1) and router.done == []
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit


def test_clients_that_come_together_are_let_in_together():
    """In the event loop of the router, which by itself accepts one in each of its turns."""

    async def scene():
        listener = listen("127.0.0.1", 0)
        config = uvicorn.Config(lambda: None, http="httptools", lifespan="off", log_config=None)
        server = Server(config, Router(), 0.0, 0.0)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.001)
        clients = [socket.create_connection(listener.getsockname(), timeout=10) for _ in range(50)]
        turns = 0
        while len(server.server_state.connections) < len(clients):
            await asyncio.sleep(0)
            turns += 1
        for client in clients:
            client.close()
        server.should_exit = True
        await serving
        assert turns < len(clients) // 2

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scene(), 20))
