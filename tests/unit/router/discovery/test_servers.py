import asyncio
from dataclasses import replace
from time import monotonic

import pytest

from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from router.discovery import server as server_module
from router.discovery import servers as module
from router.discovery.entry import Contract, Entry
from router.discovery.server import Server
from router.discovery.servers import Listed, Servers
from router.legs.call import Reply
from router.legs.pool import LegPool, PoolLimits
from router.store.codec import encode_instance
from tests.support.instances import decode
from tests.support.routers import until


@pytest.fixture(autouse=True)
def _quick_and_patient(monkeypatch):
    monkeypatch.setattr(server_module, "POLL_S", 0.01)
    monkeypatch.setattr(server_module, "TIMEOUT_S", 20.0)
    monkeypatch.setattr(module, "FIRST_S", 20.0)


class Changing(Listed):
    def __init__(self, *entries):
        super().__init__(())
        self.listed = entries

    def entries(self):
        return self.listed


@pytest.fixture
async def engine():
    made = MockEngine(Role.DECODE, "d0")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def servers():
    """A function that makes Servers of listings."""
    made = []

    def make(*listings):
        made.append(Servers(listings, lambda url: LegPool(url, PoolLimits(connect_s=20.0))))
        return made[-1]

    yield make
    for one in made:
        await one.aclose()


def ids(sightings):
    return [sighting.instance.instance_id for sighting in sightings]


async def test_the_first_snapshot_waits_for_first_answers(engine, servers):
    found = servers(Listed([Entry(engine.url)]))
    (seen,) = await found.snapshot()
    assert seen.instance == engine.instance
    assert 0 < seen.lease_left_s <= server_module.LEASE_S


async def test_a_server_that_hangs_holds_up_nobody(engine, servers, monkeypatch):
    """C14: its connections are accepted and never answered."""
    monkeypatch.setattr(module, "FIRST_S", 0.3)
    mute = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{mute.sockets[0].getsockname()[1]}"
    found = servers(Listed([Entry(url), Entry(engine.url)]))
    await found.snapshot()
    await until(lambda: ids(found.seen()) == ["d0"])
    engine.epoch = 2
    await until(lambda: found.seen()[0].instance.epoch == 2)
    mute.close()


async def test_listings_may_change(engine, servers):
    listing = Changing()
    found = servers(listing)
    assert await found.snapshot() == ()
    listing.listed = (Entry(engine.url),)
    assert ids(await found.snapshot()) == ["d0"]
    listing.listed = ()
    assert await found.snapshot() == ()
    await until(lambda: not engine.connections)


async def test_what_is_written_beside_a_server_holds_at_once(engine, servers):
    entry = Entry(engine.url)
    listing = Changing(entry)
    found = servers(listing)
    await found.snapshot()
    marked = replace(entry, draining=True, zone="z", labels=(("a", "b"),), aliases=("n", "m"))
    listing.listed = (marked,)
    (seen,) = await found.snapshot()
    assert (seen.instance.draining, seen.instance.zone, seen.instance.labels) == (True, "z", (("a", "b"),))
    assert seen.instance.names == ("m", "n")


async def test_one_url_is_one_server_and_the_first_listing_that_names_it_counts(engine, servers):
    found = servers(Listed([Entry(engine.url, zone="a")]), Listed([Entry(engine.url, zone="b")]))
    (seen,) = await found.snapshot()
    assert seen.instance.zone == "a"


async def test_a_server_that_refuses_is_gone_at_once_and_comes_back(engine, servers):
    found = servers(Listed([Entry(engine.url)]))
    await found.snapshot()
    port = int(engine.url.rpartition(":")[2])
    await engine.stop()
    await until(lambda: not found.seen())
    await engine.start(port)
    await until(lambda: ids(found.seen()) == ["d0"])


async def test_a_server_that_is_mute_is_known_until_its_lease_ends(engine, servers, monkeypatch):
    found = servers(Listed([Entry(engine.url, contract=Contract.TANDEM)]))
    (before,) = await found.snapshot()
    monkeypatch.setattr(server_module, "decode_instance", lambda body: None)
    await until(lambda: found.seen()[0].lease_left_s < before.lease_left_s - 0.1)
    monkeypatch.setattr(server_module, "LEASE_S", 0.0)
    assert found.seen() == ()


async def test_a_bug_costs_one_server_only(engine, servers, monkeypatch, caplog):
    other = MockEngine(Role.PREFILL, "p0")
    await other.start()
    found = servers(Listed([Entry(engine.url), Entry(other.url)]))
    await found.snapshot()
    honest = server_module.decode_instance

    def broken(body):
        if b'"d0"' in body:
            raise RuntimeError("a bug")
        return honest(body)

    monkeypatch.setattr(server_module, "decode_instance", broken)
    await until(lambda: ids(found.seen()) == ["p0"])
    assert "by a bug" in caplog.text
    await other.stop()


async def test_a_listed_server_that_may_not_be_called_is_left_out(engine, servers, caplog):
    found = servers(Listed([Entry("http://169.254.169.254"), Entry(engine.url)]))
    for _ in range(2):
        assert ids(await found.snapshot()) == ["d0"]
    assert found.num_refused == 1
    assert len([record for record in caplog.records if "left out" in record.getMessage()]) == 1


async def test_a_shim_does_not_say_where_prompts_go(monkeypatch):
    lie = encode_instance(replace(decode("d0").instance, url="http://10.9.9.9:1"))

    async def answered(pool, request, side, timeout_s):
        return Reply(200, [], lie)

    monkeypatch.setattr(server_module, "call", answered)
    server = Server(Entry("http://listed:1"), lambda url: LegPool(url, PoolLimits()))
    await server.look()
    assert [one.instance.url for one in server.sightings(monotonic())] == ["http://listed:1"]
