"""A Redis Cluster of three nodes on this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing

from redis.asyncio import Redis

from router.store.embedded import EmbeddedStore

NUM_SLOTS = 16384
NUM_NODES = 3


@asynccontextmanager
async def three_nodes() -> AsyncIterator[str]:
    """Inside, three servers share all slots; the URL is that of one of them."""
    ports = free_ports(2 * NUM_NODES)
    clients = [Redis(host="127.0.0.1", port=port) for port in ports[:NUM_NODES]]
    with ExitStack() as stack:
        for port, bus in zip(ports[:NUM_NODES], ports[NUM_NODES:], strict=True):
            flags = ("--port", port, "--cluster-enabled", "yes", "--cluster-port", bus)
            stack.enter_context(EmbeddedStore(arguments=tuple(map(str, flags))))
        for index, client in enumerate(clients):
            first, last = index * NUM_SLOTS // NUM_NODES, (index + 1) * NUM_SLOTS // NUM_NODES - 1
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for port, bus in zip(ports[1:NUM_NODES], ports[NUM_NODES + 1 :], strict=True):
            await clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        for client in clients:
            while not await knows_all(client):
                await asyncio.sleep(0.02)
        yield f"redis+cluster://127.0.0.1:{ports[0]}"
        for client in clients:
            await client.aclose()


async def knows_all(client: Redis) -> bool:
    """True once this node sees all slots served by all nodes."""
    said = await client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in said and f"cluster_size:{NUM_NODES}".encode() in said


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
