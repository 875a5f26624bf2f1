"""What the hook leans on of uvicorn: this fails first when a new uvicorn differs."""

import asyncio
import hashlib
from importlib.metadata import version
from time import monotonic
from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.api.door import NOT_PLAIN, DoorLimits
from router.api.gate import Gate
from router.api.hook import HookProtocol
from router.api.keys import Keyring
from router.api.protocol import MAX_BEHIND
from router.core.intake import Endpoint
from router.core.timing import Deadlines
from tests.support.transports import KeptTransport


class Door:
    limits = DoorLimits(max_body_bytes=100)
    gate = Gate()
    escorted = NOT_PLAIN

    def __init__(self):
        self.entered = []
        self.router = SimpleNamespace(idle=set(), deadlines=Deadlines())

    def enter(self, client, endpoint, headers, body, caller=""):
        self.entered.append((client, endpoint, headers, body))


@pytest.fixture
async def made():
    calls = []

    async def app(scope, receive, send):
        calls.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none")
    protocol = HookProtocol(config, ServerState(), {}, asyncio.get_running_loop(), door=Door())
    transport = KeptTransport()
    protocol.connection_made(transport)
    protocol.calls = calls
    yield protocol
    if protocol.parser is not None:
        protocol.connection_lost(None)


def post(body=b'{"model":"m"}', path="/v1/chat/completions", method="POST", version_="1.1", lines=()) -> bytes:
    head = [f"{method} {path} HTTP/{version_}", "Host: t", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def test_it_is_the_uvicorn_that_was_read():
    assert version("uvicorn").startswith("0.54.")
    for name in ("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"):
        assert callable(getattr(HttpToolsProtocol, name))
    for name in (
        "on_response_complete",
        "timeout_keep_alive_handler",
        "shutdown",
        "pause_writing",
        "resume_writing",
        "_start_asgi_task",
    ):
        assert callable(getattr(HttpToolsProtocol, name))


async def test_a_caller_without_a_key_is_not_taken(made):
    made._gate = Gate(Keyring(["ann:" + hashlib.sha256(b"k1").hexdigest()], None))
    made.data_received(post(lines=["Authorization: Bearer k1"]))
    ((client, *_),) = made.door.entered
    assert client._caller == "ann"
    client.response_complete = True
    made.data_received(post(lines=["Authorization: Bearer k2"]))
    assert len(made.door.entered) == 1 and made.cycle is not client


async def test_a_plain_request_is_taken_when_it_is_whole(made):
    raw = post()
    made.data_received(raw[:-3])
    assert not made.door.entered
    made.data_received(raw[-3:])
    ((client, endpoint, headers, body),) = made.door.entered
    assert (endpoint, body) == (Endpoint.CHAT, b'{"model":"m"}')
    assert headers[b"host"] == b"t"
    assert made.cycle is client and not made.calls and not made.tasks


@pytest.mark.parametrize(
    "raw",
    [
        post(path="/v1/models"),
        post(path="/v1/chat/completions?x=1"),
        post(method="PUT"),
        post(version_="1.0"),
        post(version_="1.0", lines=["Connection: keep-alive"]),
        post(lines=["Expect: 100-continue"]),
        post(lines=["Upgrade: h2c", "Connection: upgrade"]),
        post(body=b"x" * 101),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_anything_else_is_uvicorns(made, raw):
    made.data_received(raw)
    assert not made.door.entered
    await asyncio.gather(*made.tasks)
    assert len(made.calls) == 1


async def test_a_request_behind_a_running_one_waits_its_turn(made):
    made.data_received(post() + post(path="/v1/models", method="GET", body=b""))
    ((client, *_),) = made.door.entered
    assert len(made.pipeline) == 1 and not made.calls
    client.response_complete = True
    made.end_hooked(client)
    await asyncio.gather(*made.tasks)
    assert made.calls == ["/v1/models"]


async def test_a_request_of_a_client_that_has_not_taken_the_last_answer_is_uvicorns(made):
    made.data_received(post())
    ((client, *_),) = made.door.entered
    made.pause_writing()
    client.response_complete = True
    made.end_hooked(client)
    made.data_received(post())
    assert len(made.door.entered) == 1 and not made.calls
    made.resume_writing()
    await asyncio.gather(*made.tasks)
    assert made.calls == ["/v1/chat/completions"]


async def test_between_requests_the_keep_alive_runs(made):
    made.data_received(post())
    ((client, *_),) = made.door.entered
    idle = made.door.router.idle
    assert not idle and made.timeout_keep_alive_task is None
    client.response_complete = True
    made.end_hooked(client)
    assert idle == {made} and 0 < made.due_at - monotonic() <= made.timeout_keep_alive
    made.data_received(post())
    assert not idle and len(made.door.entered) == 2


async def test_a_connection_that_stays_idle_is_closed(made):
    made.data_received(post())
    ((client, *_),) = made.door.entered
    client.response_complete = True
    made.end_hooked(client)
    made.on_due(made.due_at)
    assert made.transport.closed and not made.door.router.idle
    made.on_due(made.due_at)


async def test_a_connection_that_is_gone_is_not_swept(made):
    made.data_received(post())
    ((client, *_),) = made.door.entered
    client.response_complete = True
    made.end_hooked(client)
    made.connection_lost(None)
    assert not made.door.router.idle


async def test_a_shutdown_waits_for_a_running_request(made):
    made.data_received(post())
    ((client, *_),) = made.door.entered
    made.shutdown()
    assert not made.transport.is_closing() and client.keep_alive is False
    client.response_complete = True
    made.end_hooked(client)
    assert made.transport.is_closing()


async def test_an_idle_connection_is_closed_by_a_shutdown(made):
    made.shutdown()
    assert made.transport.is_closing()


async def test_the_running_client_hears_of_the_connection(made):
    heard = []
    made.data_received(post())
    ((client, *_),) = made.door.entered

    class Exchange:
        def __getattr__(self, name):
            return lambda: heard.append(name)

    client._exchange = Exchange()
    made.pause_writing()
    made.resume_writing()
    made.connection_lost(None)
    assert heard == ["on_client_paused", "on_client_resumed", "on_client_gone"]
    assert client.disconnected


async def test_only_so_many_requests_are_read_behind_a_running_one(made):
    made.data_received(post())
    for _ in range(MAX_BEHIND - 1):
        made.data_received(post())
        assert not made.transport.paused
    made.data_received(post())
    assert made.transport.paused and len(made.pipeline) == MAX_BEHIND
