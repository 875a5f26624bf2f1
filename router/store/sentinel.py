"""A store behind Sentinel: its URL, and the pool that always connects to the primary of the moment."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from router.store.pool import PrimaryPool

DEFAULT_PORT = 26379
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}


def primary_pool(url: str, *, max_connections: int, timeout_s: float) -> PrimaryPool:
    """A pool for the primary of the service that the URL names; nothing is sent before its first command.

    Args:
        url: `redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db]`, or `rediss+sentinel://` for
            TLS to servers and sentinels alike. User and password are the servers'; sentinels that want their own get
            `?sentinel_username=...&sentinel_password=...`. redis-py's other query parameters work.
        timeout_s: for each of connecting, an answer, and a free connection.
    Raises:
        ValueError: the URL names no sentinel, no service, or a port or database that is no number.
    """
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("it names no service after the sentinels; write .../SERVICE")
    if database and not database.isdigit():
        raise ValueError(f"the database {database!r} is no number")
    scheme = parts.scheme.partition("+")[0]
    options = dict(parse_url(f"{scheme}://{user}{at}sentinel/{database}?{parts.query}"))
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    waits = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    # A sentinel that does not answer is not asked again: the next one is.
    sentinels: dict[str, object] = {"retry": Retry(NoBackoff(), 0)}
    sentinels |= {name: options.pop(given) for given, name in _OF_SENTINELS.items() if given in options}
    if scheme == "rediss":
        options["ssl"] = True
        sentinels |= {"ssl": True} | {name: value for name, value in options.items() if name.startswith("ssl_")}
    return PrimaryPool(  # type: ignore[no-untyped-call]
        service,
        Sentinel(sentinel_addresses(url), sentinel_kwargs=waits | sentinels),  # type: ignore[no-untyped-call]
        max_connections=max_connections,
        timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
        protocol=2,
        **(waits | options),
    )


def sentinel_addresses(url: str) -> list[tuple[str, int]]:
    """Host and port of each sentinel that the URL names. Raises ValueError when one has no host or no good port."""
    return [_address(host) for host in urlsplit(url).netloc.rpartition("@")[2].split(",")]


def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("it names a sentinel without a host")
    return parts.hostname, parts.port or DEFAULT_PORT
