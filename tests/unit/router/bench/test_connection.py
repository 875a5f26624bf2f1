import asyncio

import pytest

from router.bench.connection import Client, Exchange, Target
from router.contract.errors import BadSettings, LegBroken, LegTimeout, LegUnreachable


class Server:
    """Answers each request with the next of `answers`; None says nothing."""

    def __init__(self, *answers, closes=False):
        self.answers, self.closes = list(answers), closes
        self.requests, self.connections = [], 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.target = Target.parse(f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}")
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        self.connections += 1
        while head := await reader.read(65536):
            self.requests.append(head)
            answer = self.answers.pop(0)
            if answer is None:
                continue
            writer.write(answer)
            await writer.drain()
            if self.closes:
                break
        writer.close()


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


async def ask(client, timeout_s=30):
    pieces = []
    exchange = Exchange(client.request("/v1/completions", b"{}"), pieces.append)
    await client.perform(exchange, timeout_s)
    return exchange.status, b"".join(pieces)


async def test_requests_are_put_with_key_and_length_and_reuse_a_connection():
    async with Server(WHOLE, CHUNKED) as server:
        client = Client(server.target, "secret")
        assert await ask(client) == (200, b"hello")
        assert await ask(client) == (503, b"hello")
        client.close()
    assert server.connections == 1
    head = server.requests[0].decode()
    assert head.startswith("POST /v1/completions HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer secret\r\n" in head
    assert head.endswith("\r\nContent-Length: 2\r\n\r\n{}")


async def test_a_closed_connection_is_not_reused():
    async with Server(WHOLE, WHOLE, closes=True) as server:
        client = Client(server.target)
        assert await ask(client) == (200, b"hello")
        while client._idle[0].is_open:  # until the server's close has arrived
            await asyncio.sleep(0)
        assert await ask(client) == (200, b"hello")
        assert server.connections == 2


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel", b"", b"SSH-2.0-x\r\n"])
async def test_an_answer_that_is_cut_or_no_http_is_broken(answer):
    async with Server(answer, closes=True) as server:
        with pytest.raises(LegBroken):
            await ask(Client(server.target))


async def test_silence_is_a_timeout_and_its_connection_is_given_up():
    async with Server(None, WHOLE) as server:
        client = Client(server.target)
        with pytest.raises(LegTimeout):
            await ask(client, timeout_s=0.05)
        assert await ask(client) == (200, b"hello")
        assert server.connections == 2


async def test_nobody_there_is_unreachable():
    async with Server() as server:
        target = server.target
    with pytest.raises(LegUnreachable, match=target.base_url):
        await ask(Client(target))


@pytest.mark.parametrize(
    ("url", "base_url"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/x/v1", "https://h:443/x"),
        ("http://h", "http://h:80"),
        ("http://[::1]:8", "http://[::1]:8"),
    ],
)
def test_urls_are_read_with_and_without_v1(url, base_url):
    assert Target.parse(url).base_url == base_url


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "/v1", "http://[::1", "http://h:x", "http://h:99999"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(BadSettings):
        Target.parse(url)
