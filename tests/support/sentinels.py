"""A primary, a replica and a sentinel that watches them, on this machine."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from redis.asyncio import Redis

from router.store.embedded import EmbeddedStore, find_server
from tests.support.redis_cluster import free_ports

SERVICE = "tandem"
DOWN_AFTER_MS = 1000


@dataclass(slots=True)
class WatchedPair:
    """Two servers of which the sentinel calls one the primary."""

    url: str
    """Names a sentinel that does not exist, then the one that does."""
    servers: dict[int, EmbeddedStore]
    """By port."""
    sentinel: Redis

    async def primary_port(self) -> int:
        """Of the server that the sentinel calls the primary."""
        _, port = await self.sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(port)

    async def fail_over(self) -> None:
        """The primary has been killed, the replica has taken over, and the killed one follows it."""
        await self.in_step()
        port = await self.primary_port()
        (other,) = (one for one in self.servers if one != port)
        self.servers[port].kill()
        await self.becomes_primary(other)
        self.servers[port].start()
        while not await _knows_both(self.sentinel):
            await asyncio.sleep(0.1)

    async def in_step(self) -> None:
        """The replica has all that has been written: writes reach it in order, and the last one is seen there.

        WAIT is not enough: a primary that has just sent its first copy counts a replica that has taken nothing since.
        """
        port = await self.primary_port()
        (other,) = (one for one in self.servers if one != port)
        async with Redis(host="127.0.0.1", port=port) as primary, Redis(host="127.0.0.1", port=other) as replica:
            await primary.set("in-step", mark := uuid4().hex)
            async with asyncio.timeout(20):
                while await replica.get("in-step") != mark.encode():
                    await asyncio.sleep(0.01)

    async def becomes_primary(self, port: int) -> None:
        """Waits until this server is the primary, says the sentinel, and says so itself."""
        client = Redis(host="127.0.0.1", port=port)
        while await self.primary_port() != port or (await client.role())[0] != b"master":
            await asyncio.sleep(0.02)
        await client.aclose()


@asynccontextmanager
async def watched_pair() -> AsyncIterator[WatchedPair]:
    """Inside, the replica has copied the primary and the sentinel knows of both."""
    first, second, watching, nobody = free_ports(4)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-sentinel-")))
        flags = ("--repl-diskless-sync-delay", "0", "--port")
        servers = {
            first: stack.enter_context(EmbeddedStore(arguments=(*flags, str(first)))),
            second: stack.enter_context(
                EmbeddedStore(arguments=(*flags, str(second), "--replicaof", f"127.0.0.1 {first}"))
            ),
        }
        sentinel = stack.enter_context(_sentinel(folder, watching, first))
        client = Redis(host="127.0.0.1", port=watching)
        try:
            async with asyncio.timeout(20):
                while not await _knows_both(client):
                    await asyncio.sleep(0.02)
            url = f"redis+sentinel://127.0.0.1:{nobody},127.0.0.1:{watching}/{SERVICE}/0"
            yield WatchedPair(url, servers, client)
        finally:
            await client.aclose()
            sentinel.kill()


def _sentinel(folder: Path, port: int, primary_port: int) -> subprocess.Popen[bytes]:
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} 1\n"
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {SERVICE} 3000\n"
    )
    return subprocess.Popen(
        [str(find_server()), str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


async def _knows_both(client: Redis) -> bool:
    """True once the sentinel answers and sees a replica that is in step."""
    try:
        replicas = await client.execute_command("SENTINEL", "REPLICAS", SERVICE)
    except (ConnectionError, OSError):
        return False
    return len(replicas) == 1 and _is_in_step(replicas[0])


def _is_in_step(replica: object) -> bool:
    fields = replica if isinstance(replica, dict) else dict(zip(replica[::2], replica[1::2], strict=True))
    texts = {_text(name): _text(value) for name, value in fields.items()}
    return texts.get("master-link-status") == "ok" and texts.get("flags") == "slave"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
