"""The connection to Redis or Valkey, and the one place where its errors become ours.

The store is a single server, a primary with replicas behind Sentinel, or a Cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from router.contract.errors import BadSettings, StoreDown
from router.store.pool import StorePool
from router.store.sentinel import primary_pool

TIMEOUT_S = 2.0
MAX_CONNECTIONS = 8
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")

StoreClient = Redis | RedisCluster


def connect(url: str, *, timeout_s: float = TIMEOUT_S) -> StoreClient:
    """A client for the store at `url`; nothing is sent before its first command.

    Connecting, sending and each wait for an answer take at most `timeout_s` seconds. A command on a connection that
    has meanwhile died is sent once more on a new one; every command of ours may be sent twice. Callers beyond
    MAX_CONNECTIONS wait for a connection, also for `timeout_s` seconds.

    Args:
        url: `redis://[user:password@]host:port/db`, `rediss://...` for TLS (`?ssl_ca_certs=FILE` and redis-py's other
            query parameters work), `unix:///path`, `redis+sentinel://host:port,host:port/service` (`sentinel.py`), or
            `redis+cluster://` and `rediss+cluster://` for any node of a Redis Cluster, which tells the others.
    Raises:
        BadSettings: the URL is none of these.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:  # its text may hold the password
        raise BadSettings("The store URL names no host that can be read; write redis://HOST:PORT.") from error
    if scheme not in SCHEMES:
        raise BadSettings(f"The store URL {shown(url)!r} must start with {', '.join(SCHEMES)} and ://.")
    try:
        if scheme.endswith("+cluster"):
            return _cluster(url, timeout_s)
        if scheme.endswith("+sentinel"):
            return Redis.from_pool(primary_pool(url, max_connections=MAX_CONNECTIONS, timeout_s=timeout_s))
        pool = StorePool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),
            protocol=2,
        )
        pool.connection_class(**pool.connection_kwargs)  # else the first command finds out what cannot be used
    except (ValueError, TypeError, RedisError, RedisClusterException) as error:
        raise BadSettings(f"The store URL {shown(url)!r} cannot be used: {error}.") from error
    return Redis.from_pool(pool)


def _cluster(url: str, timeout_s: float) -> RedisCluster:
    return RedisCluster.from_url(
        url.replace("+cluster", "", 1),
        max_connections=MAX_CONNECTIONS,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
        protocol=2,
    )


async def reconnect(client: StoreClient) -> None:
    """The next command goes over a new connection; a cluster's client learns of new primaries by itself.

    However many callers ask at once, connections are made anew once.
    """
    if isinstance(client, Redis) and isinstance(client.connection_pool, StorePool):
        await client.connection_pool.rebuild()


def shown(url: str) -> str:
    """The URL without its password, fit for a message."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def store_errors() -> Iterator[None]:
    """Within this block every failure of Redis is a StoreDown."""
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        reason = str(error) or type(error).__name__
        raise StoreDown(f"The store does not answer as it should ({reason}); check that Redis runs.") from error
