import pytest

from router.legs.connection import MAX_HEAD_BYTES, Connection
from tests.support.transports import KeptTransport


class Pool:
    def __init__(self):
        self.put_back, self.forgotten = [], []

    def put(self, connection):
        self.put_back.append(connection)

    def forget(self, connection):
        self.forgotten.append(connection)


class Heard:
    def __init__(self):
        self.answers, self.lost = [], []

    def on_answer(self, connection, body, ended):
        self.answers.append((connection.status, body, ended))

    def on_lost(self, connection, reason):
        self.lost.append(reason)


def sent():
    pool, leg, transport = Pool(), Heard(), KeptTransport()
    connection = Connection(pool)
    connection.connection_made(transport)
    connection.send(leg, b"GET / HTTP/1.1\r\n\r\n")
    return connection, transport, pool, leg


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


def test_an_answer_in_one_read_is_told_once_and_the_connection_kept():
    connection, transport, pool, leg = sent()
    assert transport.written == b"GET / HTTP/1.1\r\n\r\n"
    connection.data_received(OK)
    assert leg.answers == [(200, b"hello", True)]
    assert pool.put_back == [connection]
    assert connection.leg is None


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize(
    "raw",
    [OK, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: 1\r\n\r\n"],
)
def test_an_answer_in_pieces_is_the_same_bytes(size, raw):
    connection, _, pool, leg = sent()
    for start in range(0, len(raw), size):
        connection.data_received(raw[start : start + size])
    assert b"".join(body for _, body, _ in leg.answers) == b"hello"
    assert [ended for _, _, ended in leg.answers].count(True) == 1
    assert leg.answers[-1][2]
    assert pool.put_back == [connection]


def test_a_connection_serves_leg_after_leg():
    connection, _, pool, first = sent()
    connection.data_received(OK)
    second = Heard()
    connection.send(second, b"")
    assert not connection.answered
    connection.data_received(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
    assert second.answers == [(404, b"", True)]
    assert first.answers == [(200, b"hello", True)]
    assert connection.uses == 2 and len(pool.put_back) == 2


def test_interim_answers_are_passed_over():
    connection, _, _, leg = sent()
    connection.data_received(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    assert leg.answers == [(200, b"hello", True)]
    assert (b"link", b"x") not in connection.headers


def test_connection_close_is_not_kept():
    connection, transport, pool, leg = sent()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx")
    assert leg.answers == [(200, b"x", True)]
    assert not pool.put_back and transport.aborted


def test_more_than_one_answer_makes_it_unfit():
    connection, transport, pool, leg = sent()
    connection.data_received(OK + OK)
    assert leg.answers == [(200, b"hello", True)]
    assert not pool.put_back and transport.aborted


def test_bytes_that_nobody_asked_for_close_it():
    connection, transport, _, _ = sent()
    connection.data_received(OK)
    connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
    assert transport.aborted


@pytest.mark.parametrize("raw", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"\x16\x03\x01"])
def test_what_is_not_http_is_a_loss(raw):
    connection, transport, _, leg = sent()
    connection.data_received(raw)
    assert len(leg.lost) == 1 and transport.aborted


def test_an_endless_head_is_a_loss():
    connection, transport, _, leg = sent()
    connection.data_received(b"HTTP/1.1 200 OK\r\nx: ")
    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        connection.data_received(b"a" * 1000)
    assert len(leg.lost) == 1 and transport.aborted


def test_a_close_before_or_within_the_answer_is_a_loss():
    for seen in (b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"):
        connection, _, pool, leg = sent()
        if seen:
            connection.data_received(seen)
        connection.connection_lost(None)
        assert len(leg.lost) == 1
        assert pool.forgotten == [connection]
        assert connection.answered is bool(seen)


def test_a_body_without_a_length_ends_with_its_connection():
    connection, _, _, leg = sent()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nhe")
    connection.data_received(b"llo")
    connection.connection_lost(None)
    assert leg.answers == [(200, b"he", False), (200, b"llo", False), (200, b"", True)]
    connection, _, _, leg = sent()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nhe")
    connection.connection_lost(ConnectionResetError())
    assert len(leg.lost) == 1


def test_an_aborted_leg_hears_nothing():
    connection, transport, pool, leg = sent()
    connection.abort()
    assert transport.aborted
    connection.connection_lost(None)
    assert not leg.answers and not leg.lost and pool.forgotten == [connection]
    assert not connection.usable


def test_reading_is_held_and_resumed_while_it_lives():
    connection, transport, _, _ = sent()
    connection.pause()
    assert transport.paused
    connection.resume()
    assert not transport.paused
    connection.abort()
    connection.pause()
    assert not transport.paused


def test_sending_on_one_that_has_just_died_is_told_by_its_loss():
    connection, _, _, _ = sent()
    connection.data_received(OK)
    connection.connection_lost(None)
    leg = Heard()
    connection.send(leg, b"x")
    connection.connection_lost(None)
    assert len(leg.lost) == 1
