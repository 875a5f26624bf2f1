import asyncio

import pytest

from router.api import front as module
from router.api.door import DoorLimits
from router.api.front import ABORT_EXTENSION, AsgiClient, Front
from router.api.gate import Gate
from router.contract.errors import BadRequest, Blame, LegBroken

SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}


class Exchange:
    def __init__(self):
        self.heard = []

    def on_client_gone(self):
        self.heard.append("gone")

    def on_client_paused(self):
        self.heard.append("paused")

    def on_client_resumed(self):
        self.heard.append("resumed")


class Door:
    """Lets everybody in; the test plays the exchange."""

    limits = DoorLimits(max_body_bytes=10, arrival_s=0.02)
    gate = Gate()

    class router:  # noqa: N801 - an attribute of Door
        @staticmethod
        def mint():
            return "req-1"

    def __init__(self, refuses=None):
        self.refuses = refuses
        self.entered = asyncio.get_running_loop().create_future()
        self.exchange = Exchange()

    def enter(self, client, endpoint, headers, body, caller=""):
        client.name("req-1")
        if self.refuses is not None:
            client.refuse(self.refuses)
            return None
        self.entered.set_result((client, endpoint, body))
        return self.exchange


class Peer:
    """The server's side of one ASGI request."""

    def __init__(self, *bodies, then=None):
        self.messages = [
            {"type": "http.request", "body": body, "more_body": number < len(bodies)}
            for number, body in enumerate(bodies, 1)
        ]
        self.messages += then or []
        self.left = asyncio.Event()
        self.sent = []
        self.writable = asyncio.Event()
        self.writable.set()

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.writable.wait()
        self.sent.append(message)

    @property
    def body(self):
        return b"".join(m.get("body", b"") for m in self.sent)


async def begun(peer, scope=SCOPE):
    door = Door()
    running = asyncio.create_task(Front(door, None)(scope, peer.receive, peer.send))
    client, _, body = await door.entered
    return running, client, door.exchange, body


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "lifespan"},
        {"type": "http", "method": "GET", "path": "/v1/completions", "headers": []},
        {"type": "http", "method": "POST", "path": "/v1/models", "headers": []},
        {"type": "http", "method": "POST", "path": "/\udcff", "headers": []},
    ],
)
async def test_everything_but_inference_is_the_applications(scope):
    seen = []

    async def app(*given):
        seen.append(given)

    await Front(Door(), app)(scope, "receive", "send")
    assert [given[:2] for given in seen] == [(scope, "receive")]


@pytest.mark.parametrize(("given", "name"), [([], b"req-1"), ([(b"x-request-id", b"mine")], b"mine")])
async def test_the_applications_answers_have_a_request_id_and_head_is_get(given, name):
    async def app(scope, receive, send):
        assert scope["method"] == "GET"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"x"})

    for method in ("GET", "HEAD"):
        peer, scope = Peer(), {"type": "http", "method": method, "path": "/v1/models", "headers": given}
        await Front(Door(), app)(scope, peer.receive, peer.send)
        assert peer.sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", name)]
        assert scope["method"] == method, "it is the server's, which leaves the body out"


async def test_an_answer_is_sent_as_it_comes():
    peer = Peer(b"ab", b"c")
    running, client, exchange, body = await begun(peer)
    assert body == b"abc"
    client.begin(200, [(b"a", b"b")], None)
    client.write(b"1", ended=False)
    await asyncio.sleep(0.01)
    assert peer.body == b"1"
    client.write(b"2", ended=True)
    await running
    assert peer.sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", b"req-1")]
    assert [m.get("more_body") for m in peer.sent] == [None, True, False]
    assert peer.body == b"12" and exchange.heard == []


async def test_a_refusal_is_sent():
    peer = Peer(b"")
    await Front(Door(BadRequest("No.")), None)(SCOPE, peer.receive, peer.send)
    assert peer.sent[0]["status"] == 400 and b"bad_request" in peer.body


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"11")], [(b"expect", b"100-continue")]])
async def test_a_body_over_the_limit_is_refused(headers):
    peer = Peer(b"x" * 6, b"x" * 6)
    given = [*headers, (b"x-request-id", b"mine")]
    await Front(Door(), None)(SCOPE | {"headers": given}, peer.receive, peer.send)
    assert peer.sent[0]["status"] == 413 and (b"x-request-id", b"mine") in peer.sent[0]["headers"]
    assert ((b"connection", b"close") in peer.sent[0]["headers"]) is bool(dict(headers).get(b"expect"))


async def test_a_body_that_does_not_come_is_refused():
    peer = Peer()
    await Front(Door(), None)(SCOPE, peer.receive, peer.send)
    assert peer.sent[0]["status"] == 408 and (b"connection", b"close") in peer.sent[0]["headers"]


async def test_a_client_that_leaves_before_its_request_is_whole_gets_nothing():
    peer = Peer(then=[{"type": "http.disconnect"}])
    await Front(Door(), None)(SCOPE, peer.receive, peer.send)
    assert peer.sent == []


async def test_a_client_that_leaves_is_told_to_the_exchange_once():
    peer = Peer(b"")
    running, client, exchange, _ = await begun(peer)
    client.begin(200, [], None)
    client.write(b"1", ended=False)
    peer.left.set()
    await running
    assert exchange.heard == ["gone"]


async def test_a_slow_client_holds_the_exchange_back(monkeypatch):
    monkeypatch.setattr(module, "QUEUE_BYTES", 8)
    peer = Peer(b"")
    running, client, exchange, _ = await begun(peer)
    peer.writable.clear()
    client.begin(200, [], None)
    for _ in range(5):
        client.write(b"12345", ended=False)
    assert exchange.heard == ["paused"]
    peer.writable.set()
    while len(exchange.heard) < 2:
        await asyncio.sleep(0)
    assert exchange.heard == ["paused", "resumed"]
    client.write(b"", ended=True)
    await running
    assert peer.body == b"12345" * 5


async def test_a_broken_stream_ends_with_an_event_and_anything_else_is_cut():
    error = LegBroken("It broke.", side=Blame.DECODE)
    peer = Peer(b"")
    running, client, _, _ = await begun(peer)
    client.begin(200, [], None)
    client.break_off(error, stream=True)
    await running
    assert b"leg_broken" in peer.body and peer.sent[-1]["more_body"] is False
    aborted = []
    peer = Peer(b"")
    running, client, _, _ = await begun(peer, SCOPE | {"extensions": {ABORT_EXTENSION: lambda: aborted.append(1)}})
    client.begin(200, [], 5)
    client.break_off(error, stream=False)
    await running
    assert aborted == [1] and not any(m.get("more_body") is False for m in peer.sent)


async def test_without_the_extension_an_abandoned_answer_is_left_incomplete():
    client, sent = AsgiClient(), []

    async def send(message):
        sent.append(message)

    client.name("x")
    client.begin(200, [], 5)
    client.abandon()
    await client.run(send)
    assert sent == []
