import asyncio
import socket

import uvloop

from router.bench.mock_engine import MockEngine


def test_all_who_wait_are_accepted_in_few_turns_of_the_loop():
    """uvloop alone takes one in each turn, and turns are long under load: hundreds of legs would wait for the mock."""

    async def scene() -> int:
        engine = MockEngine()
        port = int((await engine.start()).rpartition(":")[2])
        clients = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(20)]
        turns = 0
        while len(engine.connections) < len(clients):
            turns += 1
            await asyncio.sleep(0)
        for client in clients:
            client.close()
        await engine.stop()
        return turns

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asyncio.wait_for(scene(), 20)) < 12
