import pytest

from router.store.pool import PrimaryPool
from router.store.sentinel import primary_pool


def pool(url: str) -> PrimaryPool:
    return primary_pool(url, max_connections=3, timeout_s=0.5)


def asked(made: PrimaryPool) -> list[tuple[object, object]]:
    options = [sentinel.connection_pool.connection_kwargs for sentinel in made.sentinel_manager.sentinels]
    return [(one["host"], one["port"]) for one in options]


def test_the_url_names_sentinels_service_database_and_the_servers_user() -> None:
    made = pool("redis+sentinel://ann:p%40ss@s1:1000,s2,[::1]:1002/main/3?health_check_interval=7")
    assert asked(made) == [("s1", 1000), ("s2", 26379), ("::1", 1002)]
    assert (made.service_name, made.max_connections, made.timeout) == ("main", 3, 0.5)
    options = made.connection_kwargs
    assert (options["db"], options["username"], options["password"]) == (3, "ann", "p@ss")
    assert (options["socket_timeout"], options["health_check_interval"]) == (0.5, 7)
    for sentinel in made.sentinel_manager.sentinels:
        given = sentinel.connection_pool.connection_kwargs
        assert (given["socket_connect_timeout"], given.get("password")) == (0.5, None)


def test_sentinels_may_want_a_password_of_their_own() -> None:
    made = pool("redis+sentinel://:servers@s1/main?sentinel_username=watch&sentinel_password=sentinels")
    (sentinel,) = made.sentinel_manager.sentinels
    given = sentinel.connection_pool.connection_kwargs
    assert (given["username"], given["password"]) == ("watch", "sentinels")
    assert made.connection_kwargs["password"] == "servers"
    assert "sentinel_password" not in made.connection_kwargs


def test_tls_is_for_servers_and_sentinels() -> None:
    made = pool("rediss+sentinel://s1/main?ssl_ca_certs=ca.pem")
    assert made.connection_class.__name__ == "SentinelManagedSSLConnection"
    (sentinel,) = made.sentinel_manager.sentinels
    assert sentinel.connection_pool.connection_class.__name__ == "SSLConnection"
    assert sentinel.connection_pool.connection_kwargs["ssl_ca_certs"] == "ca.pem"


@pytest.mark.parametrize("url", ["://s1", "://s1/", "://s1/main/x", "://s1:port/main", ":///main", "://s1,,s2/main"])
def test_an_url_without_sentinel_service_or_number_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        pool(f"redis+sentinel{url}")


async def test_closing_closes_the_sentinels_connections_too() -> None:
    made = pool("redis+sentinel://s1/main")
    closed = []

    async def aclose() -> None:
        closed.append(True)

    made.sentinel_manager.aclose = aclose
    await made.aclose()
    assert closed == [True]
