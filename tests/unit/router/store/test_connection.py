import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, ResponseError

from router.contract.errors import BadSettings, StoreDown
from router.store.connection import connect, reconnect, shown, store_errors


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:6379", "http://localhost", "redis://host:port", "redis://host/x?timeout=a"),
        *("redis+sentinel://s1", "redis://[::1", "redis+cluster://[::1", "redis://host?nonsense=1"),
        "rediss://host?ssl_cert_reqs=nonsense",
    ],
)
def test_an_url_that_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(BadSettings):
        connect(url)


def test_a_refusal_never_shows_the_password() -> None:
    with pytest.raises(BadSettings) as refusal:
        connect("http://user:secret@host:6379/0")
    assert "secret" not in refusal.value.message
    with pytest.raises(BadSettings) as refusal:
        connect("redis://user:secret@\u2100:6379/0")
    assert "secret" not in refusal.value.message
    assert shown("rediss://user:secret@host:6380/2?x=secret") == "rediss://host:6380/2"


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:1/0",
        "rediss://u:p@h:1/0?ssl_ca_certs=ca.pem",
        "unix:///run/store.sock",
        "redis+sentinel://s1,s2:1/service",
        "redis+cluster://h:1",
        "rediss+cluster://u:p@h:1",
    ],
)
async def test_connecting_sends_nothing(url: str) -> None:
    client = connect(url)
    await client.aclose()


@pytest.mark.parametrize(
    "error",
    [
        RedisConnectionError("gone"),
        RedisClusterException("torn"),
        ResponseError("odd"),
        OSError("no route"),
        TimeoutError(),
    ],
)
def test_every_failure_of_redis_is_store_down(error: Exception) -> None:
    with pytest.raises(StoreDown) as down, store_errors():
        raise error
    assert (str(error) or "TimeoutError") in down.value.message
    assert down.value.__cause__ is error


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), store_errors():
        raise KeyError("bug")


async def test_a_server_that_accepts_and_never_answers_is_down_within_the_timeout() -> None:
    async def be_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hung_up.wait()
        writer.close()

    hung_up = asyncio.Event()
    server = await asyncio.start_server(be_silent, "127.0.0.1", 0)
    client = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", timeout_s=0.05)
    with pytest.raises(StoreDown), store_errors():
        await client.get("key")
    await client.aclose()
    hung_up.set()
    server.close()
    await server.wait_closed()


async def test_more_callers_than_connections_wait_for_their_turn(redis_url: str, namespace: str) -> None:
    client = connect(redis_url)
    await asyncio.gather(*(client.incr(f"{namespace}:count") for _ in range(200)))
    assert int(await client.get(f"{namespace}:count") or 0) == 200
    await client.delete(f"{namespace}:count")
    await client.aclose()


@pytest.mark.needs("redis")
async def test_reconnecting_closes_idle_connections(redis_url: str) -> None:
    client = connect(redis_url)
    before = await client.client_id()
    await reconnect(client)
    assert await client.client_id() > before
    await client.aclose()


async def test_a_cluster_that_is_not_there_is_store_down() -> None:
    client = connect("redis+cluster://127.0.0.1:1", timeout_s=0.05)
    with pytest.raises(StoreDown), store_errors():
        await client.get("key")
    await reconnect(client)
    await client.aclose()
