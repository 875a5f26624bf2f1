import asyncio
import gc
from time import monotonic

import pytest

from router.contract.engine_hosts import read_engine_hosts
from router.contract.errors import BadSettings
from router.legs.access import EngineAccess
from router.legs.connection import Connection
from router.legs.pool import LegPool, PoolLimits
from tests.support.transports import KeptTransport


class Dialling:
    def __init__(self):
        self.cancelled = False
        self.got = asyncio.get_running_loop().create_future()

    def on_connected(self, connection):
        self.got.set_result(connection)

    def on_unreachable(self, reason):
        self.got.set_result(reason)

    def on_lost(self, connection, reason):
        pass


def idle(pool: LegPool) -> Connection:
    connection = Connection(pool)
    connection.connection_made(KeptTransport())
    pool.put(connection)
    return connection


@pytest.mark.parametrize(
    "url", ["ftp://h:1", "h:1", "http://h:1/path", "http://", "redis://h", "http://169.254.169.254"]
)
def test_only_plain_addresses_are_taken(url):
    with pytest.raises(BadSettings):
        LegPool(url, PoolLimits())


def test_requests_name_the_host_and_carry_the_engines_key():
    assert LegPool("http://[::1]:9", PoolLimits()).own_lines == b"host: [::1]:9\r\n"
    pool = LegPool("http://h:1", PoolLimits(), EngineAccess("k2"))
    assert pool.own_lines == b"host: h:1\r\nauthorization: Bearer k2\r\n"


def test_a_key_that_changes_goes_with_the_next_request():
    access = EngineAccess("all", {"http://h:1": "own"})
    pool, other = LegPool("http://h:1", PoolLimits(), access), LegPool("http://h:2", PoolLimits(), access)
    access.change({"http://h:1": "new", "http://h:2": ""})
    assert pool.own_lines == b"host: h:1\r\nauthorization: Bearer new\r\n"
    assert other.own_lines == b"host: h:2\r\n"
    del pool
    gc.collect()
    assert set(access.followers) == {other}


def test_the_warmest_connection_is_taken_first():
    pool = LegPool("http://h:1", PoolLimits())
    cold, warm = idle(pool), idle(pool)
    assert pool.num_idle == 2
    assert pool.take() is warm
    assert pool.take() is cold
    assert pool.take() is None


def test_a_closing_connection_is_not_taken():
    pool = LegPool("http://h:1", PoolLimits())
    good, bad = idle(pool), idle(pool)
    bad.abort()
    assert pool.take() is good


def test_a_dead_connection_is_forgotten():
    pool = LegPool("http://h:1", PoolLimits())
    dead = idle(pool)
    dead.connection_lost(None)
    assert pool.take() is None


def test_what_has_been_idle_too_long_is_closed():
    pool = LegPool("http://h:1", PoolLimits(idle_for_s=5.0))
    old, young = idle(pool), idle(pool)
    old.idle_since = monotonic() - 6.0
    pool.close_idle()
    assert not old.usable and young.usable
    assert pool.num_idle == 1


async def test_dialling_brings_a_connection():
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    pool = LegPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", PoolLimits())
    leg = Dialling()
    pool.dial(leg)
    assert pool.num_busy == 1
    connection = await leg.got
    assert connection.usable
    assert (pool.num_live, pool.num_idle) == (1, 0)
    pool.close()
    while pool.num_live:
        await asyncio.sleep(0)
    server.close()


async def test_a_connection_for_a_cancelled_leg_waits_for_another():
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    pool = LegPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", PoolLimits())
    leg = Dialling()
    pool.dial(leg)
    leg.cancelled = True
    while not pool.num_idle:
        await asyncio.sleep(0)
    assert not leg.got.done()
    pool.close()
    server.close()


async def test_a_closed_port_is_unreachable():
    pool = LegPool("http://127.0.0.1:1", PoolLimits())
    leg = Dialling()
    pool.dial(leg)
    assert "refused" in (await leg.got).lower()
    quiet = Dialling()
    pool.dial(quiet)
    quiet.cancelled = True
    while pool.num_busy:
        await asyncio.sleep(0)
    assert not quiet.got.done()


async def test_a_black_hole_is_unreachable_in_time(monkeypatch):
    async def never(*_, **__):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    pool = LegPool("http://h:1", PoolLimits(connect_s=0.01))
    leg = Dialling()
    pool.dial(leg)
    assert "within 0.01 s" in await leg.got
    quiet = Dialling()
    pool.dial(quiet)
    quiet.cancelled = True
    while pool.num_busy:
        await asyncio.sleep(0.001)
    assert not quiet.got.done()


async def test_a_connection_that_is_put_back_goes_to_who_waits():
    pool = LegPool("http://127.0.0.1:1", PoolLimits())
    leg = Dialling()
    pool.want(leg)
    dead, freed = Connection(pool), Connection(pool)
    freed.connection_made(KeptTransport())
    pool.put(dead)
    assert not leg.got.done()
    pool.put(freed)
    assert await leg.got is freed
    assert pool.take() is None, "the dead one is not taken, the other one is the leg's"
    pool.close()


async def test_closing_ends_dials_too():
    pool = LegPool("http://127.0.0.1:1", PoolLimits())
    leg = Dialling()
    pool.dial(leg)
    pool.want(leg)
    pool.close()
    while pool.num_busy:
        await asyncio.sleep(0)
    assert not leg.got.done()


async def test_a_name_that_leads_where_no_engine_may_be_is_unreachable():
    seen = []

    async def listen(reader, writer):
        seen.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        hosts = read_engine_hosts(("10.0.0.0/8",))
        pool = LegPool(f"http://localhost:{port}", PoolLimits(), EngineAccess("key", hosts=hosts))
        leg = Dialling()
        pool.dial(leg)
        assert "engine_hosts" in await leg.got
        async with asyncio.timeout(10):
            while not seen:
                await asyncio.sleep(0.001)
    assert seen == [b""] and pool.num_live == 0


async def test_an_address_is_judged_anew_when_a_name_leads_to_another(monkeypatch):
    asked, led_to = [], iter(["10.0.0.1", "10.0.0.1", "10.0.0.2", "9.9.9.9", "10.0.0.2"])
    hosts = read_engine_hosts(("10.0.0.0/8",))

    class Led(KeptTransport):
        def get_extra_info(self, name):
            return (next(led_to), 1)

    class Asked:
        def admit(self, host):
            return hosts.admit(host)

        def admit_address(self, host, address):
            asked.append(address)
            return hosts.admit_address(host, address)

    async def connect(make, *_, **__):
        connection = make()
        connection.connection_made(transport := Led())
        return transport, connection

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    pool, got = LegPool("http://gpu", PoolLimits(), EngineAccess(hosts=Asked())), []
    for _ in range(5):
        pool.dial(leg := Dialling())
        got.append(isinstance(await leg.got, Connection))
    assert got == [True, True, True, False, True]
    assert asked == ["10.0.0.1", "10.0.0.2", "9.9.9.9"]


@pytest.mark.parametrize(
    ("url", "set_name", "asked"), [("https://h", "", "h"), ("https://h", "gpu", "gpu"), ("http://h", "gpu", None)]
)
async def test_certificates_must_have_the_name_that_is_set(monkeypatch, url, set_name, asked):
    names = []

    async def refuse(*_, server_hostname, **__):
        names.append(server_hostname)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse)
    leg = Dialling()
    LegPool(url, PoolLimits(), EngineAccess(server_name=set_name)).dial(leg)
    await leg.got
    assert names == [asked]
