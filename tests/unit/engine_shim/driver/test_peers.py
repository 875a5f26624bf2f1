"""Handshakes over real HTTP between two side channels; the agents are loopback's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest
import uvicorn
from fastapi import FastAPI

from engine_shim.driver.driver import Driver
from engine_shim.driver.peers import PEER_PATH, PeerCard, Peers, read_card
from engine_shim.serve.side_channel import side_channel
from router.contract.errors import HandshakeFailed, LayoutMismatch, PeerGone
from router.contract.ids import EngineId
from router.contract.instance import Role
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Site, small_layout


async def serve(driver: Driver) -> tuple[uvicorn.Server, asyncio.Task[None], int]:
    app = FastAPI()
    app.include_router(side_channel(driver))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    return server, task, server.servers[0].sockets[0].getsockname()[1]


@pytest.fixture
async def kitchen() -> AsyncIterator[tuple[Peers, Peers, int]]:
    """Our peers, theirs, and the port of their side channel."""
    site = Site()
    ours = await site.open(Role.DECODE, FakeEngine(small_layout()))
    theirs = await site.open(Role.PREFILL, FakeEngine(small_layout(8)))
    server, task, port = await serve(theirs)
    assert ours.peers is not None
    assert theirs.peers is not None
    # HTTP this time: the plain Peers, with the Site's agents behind it.
    caller = Peers(ours.peers.card, ours.peers._writer)
    yield caller, theirs.peers, port
    await caller.aclose()
    server.should_exit = True
    await task
    await site.aclose()


async def test_one_handshake_makes_both_sides_known(kitchen: tuple[Peers, Peers, int]) -> None:
    ours, theirs, port = kitchen
    cards = await asyncio.gather(*(ours.ensure(theirs.card.engine_id, "127.0.0.1", port) for _ in range(5)))
    assert cards == [theirs.card] * 5
    assert ours.find(theirs.card.engine_id) == theirs.card
    assert theirs.find(ours.card.engine_id) == ours.card


async def test_another_engine_at_the_address_is_refused(kitchen: tuple[Peers, Peers, int]) -> None:
    ours, _theirs, port = kitchen
    with pytest.raises(HandshakeFailed, match="it has been restarted"):
        await ours.ensure(EngineId("prefill@0"), "127.0.0.1", port)
    with pytest.raises(PeerGone):
        ours.find(EngineId("prefill@0"))


async def test_nobody_at_the_address_is_a_failed_handshake(kitchen: tuple[Peers, Peers, int]) -> None:
    ours, theirs, _ = kitchen
    with pytest.raises(HandshakeFailed, match="does not answer"):
        await ours.ensure(theirs.card.engine_id, "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"compat_hash": "other"}, LayoutMismatch),
        ({"layout": replace(small_layout(), num_layers=9)}, LayoutMismatch),
        ({"protocol_version": 99}, HandshakeFailed),
        ({"agent_metadata": b"nobody"}, HandshakeFailed),
    ],
)
async def test_who_does_not_fit_is_not_let_in(
    kitchen: tuple[Peers, Peers, int], change: dict[str, object], error: type[Exception]
) -> None:
    ours, theirs, _ = kitchen
    stranger: PeerCard = replace(theirs.card, engine_id=EngineId("stranger@1"), **change)  # type: ignore[arg-type]
    with pytest.raises(error):
        await ours.welcome(stranger)
    with pytest.raises(PeerGone):
        ours.find(EngineId("stranger@1"))


async def test_a_dropped_peer_is_gone_and_can_be_met_again(kitchen: tuple[Peers, Peers, int]) -> None:
    ours, theirs, port = kitchen
    await ours.ensure(theirs.card.engine_id, "127.0.0.1", port)
    assert ours.drop(theirs.card.engine_id)
    assert not ours.drop(theirs.card.engine_id)
    with pytest.raises(PeerGone):
        ours.find(theirs.card.engine_id)
    assert await ours.ensure(theirs.card.engine_id, "127.0.0.1", port) == theirs.card


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff", b'{"engine_id": 3}'])
def test_bytes_that_are_no_card_are_a_failed_handshake(raw: bytes) -> None:
    with pytest.raises(HandshakeFailed):
        read_card(raw)


async def test_a_card_of_an_impossible_cache_is_refused(kitchen: tuple[Peers, Peers, int]) -> None:
    table = msgspec.json.decode(msgspec.json.encode(kitchen[0].card))
    table["layout"]["num_blocks"] = -5
    with pytest.raises(HandshakeFailed):
        read_card(msgspec.json.encode(table))


def test_the_path_is_the_one_the_side_channel_serves() -> None:
    assert PEER_PATH == "/kv/peer"
