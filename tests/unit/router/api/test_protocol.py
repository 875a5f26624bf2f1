import asyncio
import json

import pytest
import uvicorn
from uvicorn.server import ServerState

from router.api.door import DoorLimits
from router.api.front import ABORT_EXTENSION
from router.api.protocol import DoorProtocol
from router.core.timing import Deadlines
from tests.support.transports import KeptTransport


class Door:
    limits = DoorLimits(max_head_bytes=1000, arrival_s=0.02)

    class router:  # noqa: N801 - an attribute of Door
        deadlines = Deadlines(stalled_s=0.02)

        @staticmethod
        def mint():
            return "req-1"


@pytest.fixture
async def made():
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope)
        while scope["path"] != "/early" and (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none", date_header=False, server_header=False)
    protocol = DoorProtocol(config, ServerState(), {}, asyncio.get_running_loop(), door=Door())
    protocol.connection_made(KeptTransport())
    protocol.scopes = scopes
    yield protocol
    if protocol.parser is not None:
        protocol.connection_lost(None)


def refused(protocol) -> tuple[int, str]:
    head, _, body = protocol.transport.written.partition(b"\r\n\r\n")
    assert b"connection: close" in head and protocol.transport.closed
    return int(head.split()[1]), json.loads(body)["error"]["code"]


async def test_asgi_gets_the_scope_that_uvicorn_makes(made):
    made.data_received(b"GET /a%20b?c=d HTTP/1.1\r\nHost: t\r\nX-Y: z\r\n\r\n")
    await asyncio.gather(*made.tasks)
    (scope,) = made.scopes
    assert (scope["method"], scope["path"], scope["query_string"]) == ("GET", "/a b", b"c=d")
    assert scope["headers"] == [(b"host", b"t"), (b"x-y", b"z")]
    scope["extensions"][ABORT_EXTENSION]()
    assert made.transport.aborted


async def test_expectations_are_met_when_the_body_is_read(made):
    made.data_received(b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n")
    await asyncio.sleep(0)
    assert made.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    made.data_received(b"x")
    await asyncio.gather(*made.tasks)
    assert made.transport.written.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"])
async def test_what_is_not_http_is_refused_in_the_envelope(made, raw):
    made.data_received(raw)
    assert refused(made) == (400, "bad_request")
    made.data_received(raw)


async def test_unknown_transfer_codings_are_refused(made):
    made.data_received(b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    assert refused(made) == (400, "bad_request")
    assert not made.scopes and not made.tasks


@pytest.mark.parametrize("size", [10**9, 100])
async def test_a_head_over_the_limit_is_refused(made, size):
    raw = b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %b\r\n" % (n, b"a" * 90) for n in range(12)) + b"\r\n"
    for start in range(0, len(raw), size):
        made.data_received(raw[start : start + size])
    assert refused(made) == (431, "headers_too_large")


async def test_an_endless_head_is_refused(made):
    made.data_received(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(300):
        if not made.transport.closed:
            made.data_received(b"a" * 1000)
    assert refused(made) == (431, "headers_too_large")


async def test_a_body_may_be_larger_than_a_head(made):
    made.data_received(b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000)
    await asyncio.gather(*made.tasks)
    assert made.transport.written.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("begun", [b"", b"GET / HT"])
async def test_what_does_not_arrive_in_time_is_refused(made, begun):
    if begun:
        made.data_received(begun)
    while not made.transport.closed:
        await asyncio.sleep(0.005)
    assert refused(made) == (408, "request_timeout")


async def test_what_arrives_is_not_hurried_further(made):
    made.data_received(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.gather(*made.tasks)
    await asyncio.sleep(0.05)
    assert not made.transport.is_closing()


async def test_the_rest_of_an_answered_body_is_dropped_for_a_while(made):
    made.data_received(b"POST /early HTTP/1.1\r\nContent-Length: 100\r\n\r\n")
    await asyncio.gather(*made.tasks)
    answered = made.transport.written
    made.data_received(b"x" * 10)
    assert made.cycle.body == b""
    while not made.transport.closed:
        await asyncio.sleep(0.005)
    assert made.transport.written == answered, "a second answer would be taken for the next request's"


async def test_an_upgrade_is_served_as_an_ordinary_request(made):
    made.data_received(b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    await asyncio.gather(*made.tasks)
    assert made.transport.written.startswith(b"HTTP/1.1 200 OK")


CHUNKED = b"POST / HTTP/1.1\r\nX-Priority: 5\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


@pytest.mark.parametrize("size", [10**9, 3])
async def test_trailers_are_no_headers(made, size):
    raw = CHUNKED + b"X-Priority: -9\r\nAuthorization: Bearer q\r\n\r\nGET /next HTTP/1.1\r\nX-Y: z\r\n\r\n"
    for start in range(0, len(raw), size):
        made.data_received(raw[start : start + size])
    while made.tasks:
        await asyncio.gather(*made.tasks)
    first, second = made.scopes
    assert first["headers"] == [(b"x-priority", b"5"), (b"transfer-encoding", b"chunked")]
    assert second["headers"] == [(b"x-y", b"z")]


@pytest.mark.parametrize("size", [10**9, 100])
async def test_trailers_over_the_limit_of_a_head_are_refused(made, size):
    raw = CHUNKED + b"".join(b"X-%d: %b\r\n" % (n, b"a" * 90) for n in range(12))
    for start in range(0, len(raw), size):
        if not made.transport.closed:
            made.data_received(raw[start : start + size])
    assert refused(made) == (431, "headers_too_large")
    assert made.cycle.more_body, "the request is not whole"


async def test_an_endless_trailer_is_refused(made):
    made.data_received(CHUNKED + b"X: ")
    for _ in range(300):
        if not made.transport.closed:
            made.data_received(b"a" * 1000)
    assert refused(made) == (431, "headers_too_large")


async def test_an_endless_trailer_after_the_answer_closes_the_connection(made):
    made.data_received(CHUNKED.replace(b"POST /", b"POST /early"))
    await asyncio.gather(*made.tasks)
    answered = made.transport.written
    made.data_received(b"X: ")
    for _ in range(300):
        if not made.transport.closed:
            made.data_received(b"a" * 1000)
    assert made.transport.closed and made.transport.written == answered


async def test_the_framing_of_many_chunks_is_no_trailer(made):
    made.data_received(CHUNKED[: CHUNKED.index(b"1\r\nx")])
    piece = b"x" * 1000
    for _ in range(400):
        made.data_received(piece + b"\r\n3e8\r\n" if made.cycle.body else b"3e8\r\n" + piece + b"\r\n3e8\r\n")
    made.data_received(piece + b"\r\n0\r\n\r\n")
    await asyncio.gather(*made.tasks)
    assert made.transport.written.startswith(b"HTTP/1.1 200 OK")


HEAD = b"POST / HTTP/1.1\r\nX-Request-Id: mine\r\n"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (HEAD + b"Content-Length: x\r\n\r\n", b"mine"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", b"mine"),
        (HEAD + b"X: %b\r\n\r\n" % (b"a" * 2000), b"mine"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", b"mine"),
        (HEAD[:30], b"req-1"),
        (b"nonsense\r\n\r\n", b"req-1"),
        (HEAD + b"Content-Length: 0\r\n\r\nnonsense\r\n\r\n", b"req-1"),
    ],
)
async def test_a_refused_connection_names_its_request(made, raw, name):
    made.data_received(raw)
    while not made.transport.closed:
        await asyncio.sleep(0.005)
    assert b"\r\nx-request-id: %b\r\n" % name in made.transport.written


async def test_a_client_that_takes_nothing_is_given_up_though_it_has_been_answered(made):
    made.transport.unsent_bytes = 70_000
    made.pause_writing()
    await asyncio.sleep(0.1)
    assert made.transport.aborted


async def test_a_client_that_takes_its_answer_slowly_is_waited_for(made):
    made.transport.unsent_bytes = 70_000
    made.pause_writing()
    for _ in range(5):
        made.transport.unsent_bytes -= 1000
        made._stall.cancel()
        made._check_taking(made.transport.unsent_bytes + 1000)
    made.resume_writing()
    assert made._stall is None and not made.transport.aborted


async def test_a_connection_closes_when_its_answer_has_been_taken_or_is_not(made):
    made.transport.unsent_bytes = 5
    made.timeout_keep_alive_handler()
    assert made.transport.closed and not made.transport.aborted
    made.timeout_keep_alive_handler()
    await asyncio.sleep(0.1)
    assert made.transport.aborted


async def test_nothing_is_awaited_of_a_connection_that_is_gone(made):
    made.transport.unsent_bytes = 5
    made.close()
    made.connection_lost(None)
    assert made._stall is None
