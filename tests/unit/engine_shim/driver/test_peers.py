"""Handshakes over real HTTP between two side channels; the agents are loopback's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import msgspec
import pytest
import uvicorn
from fastapi import FastAPI

from engine_shim.core.fates import Address, Fate, FateClocks, FateDesk
from engine_shim.driver import handshake
from engine_shim.driver.driver import Driver
from engine_shim.driver.handshake import HELLO_PATH, PEER_PATH, Caller, Introduction, PeerCard, Question, read_card
from engine_shim.driver.peers import Peers
from engine_shim.serve.problems import on_problem
from engine_shim.serve.side_channel import side_channel
from router.contract.errors import HandshakeFailed, LayoutMismatch, PeerGone, TandemError
from router.contract.ids import EngineId, Epoch
from router.contract.instance import Role
from router.contract.seal import FENCE, HELLO, HELLO_ANSWER, SEAL_HEADER, Seal
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Site, small_layout, until

KEY = "k" * 32


@dataclass
class Meeting:
    """Our peers, theirs, and where their side channel listens."""

    ours: Peers
    theirs: Peers
    there: Address
    server: uvicorn.Server
    serving: asyncio.Task[None]
    http: httpx.AsyncClient

    async def stop_theirs(self) -> None:
        """Nobody listens there any more."""
        self.server.should_exit = True
        await self.serving


async def serve(driver: Driver) -> tuple[uvicorn.Server, asyncio.Task[None], int]:
    app = FastAPI()
    app.include_router(side_channel(driver, Seal(KEY)))
    app.add_exception_handler(TandemError, on_problem)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    return server, task, server.servers[0].sockets[0].getsockname()[1]


@pytest.fixture
async def meeting() -> AsyncIterator[Meeting]:
    site = Site()
    decode = await site.open(Role.DECODE, FakeEngine(small_layout()))
    prefill = await site.open(Role.PREFILL, FakeEngine(small_layout(8)))
    assert decode.hand_over is not None
    assert prefill.hand_over is not None
    server, serving, port = await serve(prefill)
    there = Address("127.0.0.1", port)
    theirs = prefill.hand_over.peers
    theirs.card = replace(theirs.card, address=there)
    # HTTP this time: Peers of our own, with the Site's agents behind them.
    near = decode.hand_over.peers
    ours = Peers(near.card, near._writer, Caller(Seal(KEY)), FateDesk(FateClocks()))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        meeting = Meeting(ours, theirs, there, server, serving, http)
        yield meeting
        await ours.aclose()
    await meeting.stop_theirs()
    await site.aclose()


async def test_one_handshake_makes_both_sides_known(meeting: Meeting) -> None:
    ours, theirs = meeting.ours, meeting.theirs
    cards = await asyncio.gather(*(ours.ensure(theirs.card.engine_id, meeting.there) for _ in range(5)))
    assert cards == [theirs.card] * 5
    assert ours.find(theirs.card.engine_id) == theirs.card
    assert theirs.find(ours.card.engine_id) == ours.card


async def test_another_engine_at_the_address_is_refused(meeting: Meeting) -> None:
    with pytest.raises(HandshakeFailed, match="started anew"):
        await meeting.ours.ensure(EngineId("prefill@0"), meeting.there)
    with pytest.raises(PeerGone):
        meeting.ours.find(EngineId("prefill@0"))
    assert meeting.ours.counts["handshake_failed"] == 1


async def test_nobody_at_the_address_is_a_failed_handshake(meeting: Meeting) -> None:
    with pytest.raises(HandshakeFailed, match="Nobody listens"):
        await meeting.ours.ensure(meeting.theirs.card.engine_id, Address("127.0.0.1", 1))


async def test_an_address_that_is_none_is_a_handshake_that_failed(meeting: Meeting) -> None:
    with pytest.raises(HandshakeFailed, match="InvalidURL"):
        await meeting.ours.ensure(EngineId("p9@1"), Address("no\0host", 1))


async def test_who_holds_another_key_is_not_let_in_and_learns_nothing(meeting: Meeting) -> None:
    ours = meeting.ours
    stranger = Peers(ours.card, ours._writer, Caller(Seal("x" * 32)), FateDesk(FateClocks()))
    with pytest.raises(HandshakeFailed, match="401"):
        await stranger.ensure(meeting.theirs.card.engine_id, meeting.there)
    await stranger.aclose()
    with pytest.raises(PeerGone):
        meeting.theirs.find(ours.card.engine_id)
    for path, message in (
        (PEER_PATH, ours.card),
        (HELLO_PATH, Question(meeting.theirs.card.engine_id, meeting.there, "n")),
    ):
        body = msgspec.json.encode(message)
        for headers in ({}, {SEAL_HEADER: Seal(KEY).header(FENCE, body)}):
            reply = await meeting.http.post(path, content=body, headers=headers)
            assert reply.status_code == 401
            assert meeting.theirs.card.engine_id not in reply.text


async def test_a_question_that_was_meant_for_another_address_brings_no_card(meeting: Meeting) -> None:
    """A stranger whom a shim has dialled passes the sealed question on to the real engine."""
    question = Question(meeting.theirs.card.engine_id, Address("10.6.6.6", 666), "n")
    body = msgspec.json.encode(question)
    headers = {SEAL_HEADER: Seal(KEY).header(HELLO, body)}
    reply = await meeting.http.post(HELLO_PATH, content=body, headers=headers)
    assert msgspec.json.decode(reply.content, type=Introduction).card is None


async def test_nobody_shows_his_card_to_one_who_does_not_hold_the_key(meeting: Meeting) -> None:
    """Such as one whom a request has named as its prefill."""
    asked: list[httpx.Request] = []

    def stranger(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        question = msgspec.json.decode(request.content, type=Question)
        answer = msgspec.json.encode(Introduction(question.engine_id, question.nonce, meeting.theirs.card))
        return httpx.Response(200, content=answer, headers={SEAL_HEADER: Seal("x" * 32).header(HELLO_ANSWER, answer)})

    caller = Caller(Seal(KEY))
    caller._client = httpx.AsyncClient(transport=httpx.MockTransport(stranger))
    ours = meeting.ours
    naive = Peers(ours.card, ours._writer, caller, FateDesk(FateClocks()))
    with pytest.raises(HandshakeFailed, match="not sealed"):
        await naive.ensure(meeting.theirs.card.engine_id, Address("10.6.6.6", 666))
    assert [request.url.path for request in asked] == [HELLO_PATH]
    assert ours.card.agent_metadata not in asked[0].content
    await naive.aclose()


async def test_an_answer_to_another_question_is_not_believed(meeting: Meeting) -> None:
    card = meeting.theirs.card
    answer = msgspec.json.encode(Introduction(card.engine_id, "an old nonce", card))
    replay = httpx.Response(200, content=answer, headers={SEAL_HEADER: Seal(KEY).header(HELLO_ANSWER, answer)})
    caller = Caller(Seal(KEY))
    caller._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: replay))
    ours = meeting.ours
    believer = Peers(ours.card, ours._writer, caller, FateDesk(FateClocks()))
    with pytest.raises(HandshakeFailed, match="not one to our question"):
        await believer.ensure(meeting.theirs.card.engine_id, meeting.there)
    await believer.aclose()


async def test_an_answer_that_never_ends_costs_a_handshake_no_more_than_its_time(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while not writer.is_closing() and not reader.at_eof():
            writer.write(b" ")
            await asyncio.sleep(0.01)
        writer.close()

    monkeypatch.setattr(handshake, "HANDSHAKE_FOR_S", 0.2)
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        at = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(HandshakeFailed, match=r"within 0\.2 s"):
            async with asyncio.timeout(10.0):
                await meeting.ours.ensure(EngineId("p9@1"), at)


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
    meeting: Meeting, change: dict[str, object], error: type[Exception]
) -> None:
    stranger: PeerCard = replace(meeting.theirs.card, engine_id=EngineId("stranger@1"), **change)  # type: ignore[arg-type]
    with pytest.raises(error):
        await meeting.ours.welcome(stranger)
    with pytest.raises(PeerGone):
        meeting.ours.find(EngineId("stranger@1"))


async def test_a_lost_peer_is_called_at_once_and_met_again(meeting: Meeting) -> None:
    """Case E2: one transport error must not make the peer unknown for good."""
    ours, engine_id = meeting.ours, meeting.theirs.card.engine_id
    await ours.ensure(engine_id, meeting.there)
    died: list[EngineId] = []
    ours.news.on_died = died.append
    ours.on_lost(engine_id)
    with pytest.raises(PeerGone):
        ours.find(engine_id)
    await until(lambda: engine_id in ours.known())
    assert (ours.with_fate(Fate.MET), died) == ([engine_id], [])
    assert ours.counts["peer_lost"] == 1


async def test_a_lost_peer_whose_address_refuses_is_dead(meeting: Meeting) -> None:
    ours, engine_id = meeting.ours, meeting.theirs.card.engine_id
    await ours.ensure(engine_id, meeting.there)
    await meeting.stop_theirs()
    died: list[EngineId] = []
    ours.news.on_died = died.append
    ours.on_lost(engine_id)
    await until(lambda: died == [engine_id])
    with pytest.raises(PeerGone, match="has ended"):
        await ours.ensure(engine_id, meeting.there)


async def test_an_operator_with_the_key_can_fence_a_peer_that_cannot_answer(meeting: Meeting) -> None:
    ours, theirs = meeting.ours, meeting.theirs
    await ours.ensure(theirs.card.engine_id, meeting.there)
    body = msgspec.json.encode({"engine_id": ours.card.engine_id})
    assert (await meeting.http.post("/kv/fence", content=body)).status_code == 401
    assert theirs.with_fate(Fate.DEAD) == []
    sealed = {SEAL_HEADER: Seal(KEY).header(FENCE, body)}
    answer = await meeting.http.post("/kv/fence", content=body, headers=sealed)
    assert (answer.status_code, answer.json()) == (200, {"fenced": [ours.card.engine_id]})
    assert theirs.with_fate(Fate.DEAD) == [ours.card.engine_id]
    with pytest.raises(PeerGone):
        await theirs.welcome(ours.card)


async def test_by_its_name_alone_only_lost_starts_of_an_engine_are_fenced(meeting: Meeting) -> None:
    ours, engine_id = meeting.ours, meeting.theirs.card.engine_id
    name = engine_id.rpartition("@")[0]
    await ours.ensure(engine_id, meeting.there)
    assert ours.fence(name) == [] and ours.with_fate(Fate.MET) == [engine_id], "one that answers is not meant"
    ours.on_lost(engine_id)
    assert ours.fence("somebody-else") == []
    assert ours.fence(name) == [engine_id]
    assert ours.with_fate(Fate.DEAD) == [engine_id]
    assert ours.fence(name) == [], "it is dead already"


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff", b'{"engine_id": 3}'])
def test_bytes_that_are_no_card_are_a_failed_handshake(raw: bytes) -> None:
    with pytest.raises(HandshakeFailed):
        read_card(raw)


async def test_a_card_of_an_impossible_cache_is_refused(meeting: Meeting) -> None:
    table = msgspec.json.decode(msgspec.json.encode(meeting.ours.card))
    table["layout"]["num_blocks"] = -5
    with pytest.raises(HandshakeFailed):
        read_card(msgspec.json.encode(table))


async def test_a_card_whose_name_and_epoch_differ_is_refused(meeting: Meeting) -> None:
    with pytest.raises(HandshakeFailed, match="do not fit"):
        read_card(msgspec.json.encode(replace(meeting.ours.card, epoch=Epoch(99))))


def test_the_path_is_the_one_the_side_channel_serves() -> None:
    assert PEER_PATH == "/kv/peer"
