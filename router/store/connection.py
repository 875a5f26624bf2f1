"""The connection to Redis or Valkey, and the one place where its errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from router.contract.errors import BadSettings, StoreDown

TIMEOUT_S = 2.0
MAX_CONNECTIONS = 8
SCHEMES = ("redis", "rediss", "unix")


def connect(url: str, *, timeout_s: float = TIMEOUT_S) -> Redis:
    """A client for the store at `url`; nothing is sent before its first command.

    Connecting, sending and each wait for an answer take at most `timeout_s` seconds. A command on a connection that
    has meanwhile died is sent once more on a new one; every command of ours may be sent twice. Callers beyond
    MAX_CONNECTIONS wait for a connection, also for `timeout_s` seconds.

    Args:
        url: `redis://[user:password@]host:port/db`, `rediss://...` for TLS (`?ssl_ca_certs=FILE` and redis-py's other
            query parameters work), or `unix:///path`.
    Raises:
        BadSettings: the URL is none of these.
    """
    if urlsplit(url).scheme not in SCHEMES:
        raise BadSettings(f"The store URL {shown(url)!r} must start with redis://, rediss:// or unix://.")
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),
            health_check_interval=0,
            protocol=2,
        )
    except (ValueError, TypeError) as error:
        raise BadSettings(f"The store URL {shown(url)!r} cannot be used: {error}.") from error
    return Redis.from_pool(pool)


def shown(url: str) -> str:
    """The URL without its password, fit for a message."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def store_errors() -> Iterator[None]:
    """Within this block every failure of Redis is a StoreDown."""
    try:
        yield
    except (RedisError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise StoreDown(f"The store does not answer as it should ({reason}); check that Redis runs.") from error
