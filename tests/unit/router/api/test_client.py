import pytest

from router.api.client import HookClient
from router.contract.errors import Blame, LegBroken
from router.core.intake import Endpoint
from router.legs.answer import Answer
from tests.support.transports import KeptTransport


class Protocol:
    def __init__(self):
        self.transport, self.ended = KeptTransport(), []

    def end_hooked(self, client):
        self.ended.append(client)


class Exchange:
    def __init__(self):
        self.heard = []

    def __getattr__(self, name):
        return lambda: self.heard.append(name)


def client(keep_alive=True):
    protocol = Protocol()
    made = HookClient(protocol, Endpoint.CHAT, {}, "ann", keep_alive=keep_alive)
    made.name("req-1")
    return made, protocol


def test_head_and_first_bytes_leave_together():
    made, protocol = client()
    made.begin(200, [(b"a", b"b")], 5)
    assert protocol.transport.written == b""
    made.write(b"hel", ended=False)
    assert protocol.transport.written == (
        b"HTTP/1.1 200 OK\r\na: b\r\nx-request-id: req-1\r\ncontent-length: 5\r\n\r\nhel"
    )
    made.write(b"lo", ended=True)
    assert protocol.transport.written.endswith(b"\r\n\r\nhello")
    assert made.response_complete and protocol.ended == [made]


def test_an_answer_of_unknown_length_is_chunked():
    made, protocol = client()
    made.begin(200, [], None)
    made.write(b"x" * 17, ended=False)
    made.write(b"", ended=False)
    made.write(b"yz", ended=True)
    head, _, body = protocol.transport.written.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head and b"content-length" not in head
    assert body == b"11\r\n" + b"x" * 17 + b"\r\n2\r\nyz\r\n0\r\n\r\n"


def test_an_empty_end_is_only_the_end():
    made, protocol = client()
    made.begin(200, [], None)
    made.write(b"a", ended=False)
    made.write(b"", ended=True)
    assert protocol.transport.written.endswith(b"1\r\na\r\n0\r\n\r\n")


def test_a_connection_that_will_close_says_so():
    made, protocol = client(keep_alive=False)
    made.answer(Answer(404, [], b"no"))
    assert b"connection: close\r\n" in protocol.transport.written
    assert protocol.transport.written.endswith(b"content-length: 2\r\n\r\nno")


def test_a_refusal_is_the_envelope():
    made, protocol = client()
    made.refuse(LegBroken("It broke.", side=Blame.DECODE))
    assert protocol.transport.written.startswith(b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\n")
    assert b'"code":"leg_broken"' in protocol.transport.written
    assert made.response_complete


def test_a_broken_stream_ends_with_an_event_and_a_proper_end():
    made, protocol = client()
    made.begin(200, [], None)
    made.write(b"data: 1\n\n", ended=False)
    made.break_off(LegBroken("It broke.", side=Blame.DECODE), stream=True)
    assert protocol.transport.written.endswith(b"\n\n\r\n0\r\n\r\n")
    assert b'"code":"leg_broken"' in protocol.transport.written
    assert protocol.ended == [made] and not protocol.transport.aborted


@pytest.mark.parametrize(("length", "stream"), [(100, False), (100, True), (None, False)])
def test_anything_else_that_breaks_is_cut(length, stream):
    made, protocol = client()
    made.begin(200, [], length)
    made.write(b"{", ended=False)
    made.break_off(LegBroken("It broke.", side=Blame.DECODE), stream=stream)
    assert protocol.transport.aborted and made.response_complete and not protocol.ended


def test_the_exchange_hears_of_the_connection_while_it_runs():
    made, _ = client()
    made.pieces = [b"a", b"b"]
    bodies = []

    class Door:
        def enter(self, client, endpoint, headers, body, caller):
            bodies.append((body, caller))
            return exchange

    exchange = Exchange()
    made.pause(), made.resume(), made.leave()
    made.enter(Door())
    assert bodies == [(b"ab", "ann")]
    made.pause(), made.resume(), made.leave()
    assert exchange.heard == ["on_client_paused", "on_client_resumed", "on_client_gone"]
    made.pause(), made.resume(), made.leave()
    assert len(exchange.heard) == 3


def test_whole_chunks_are_written_as_they_are_once_the_head_has_left():
    made, protocol = client()
    made.begin(200, [], None)
    assert made.chunk_writer() is None
    made.write(b"a", ended=False)
    made.chunk_writer()(b"2\r\nbc\r\n")
    made.write(b"", ended=True)
    assert protocol.transport.written.endswith(b"\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")


def test_an_answer_of_known_length_takes_no_chunks():
    made, _ = client()
    made.begin(200, [], 5)
    made.write(b"he", ended=False)
    assert made.chunk_writer() is None
