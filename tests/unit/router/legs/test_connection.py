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


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


class PassedBy(Heard):
    """A leg that lets whole chunks pass by once its answer has begun, and keeps all content in order."""

    def __init__(self):
        super().__init__()
        self.content, self.whole = b"", []

    def on_answer(self, connection, body, ended):
        super().on_answer(connection, body, ended)
        self.content += body
        if not ended:
            connection.take_chunk = self.take

    def take(self, chunk, start):
        self.whole.append(chunk)
        self.content += chunk[start:-2]


def passing() -> tuple[Connection, PassedBy]:
    connection, leg = Connection(Pool()), PassedBy()
    connection.connection_made(KeptTransport())
    connection.send(leg, b"")
    connection.data_received(CHUNKED + chunk(b"first"))
    return connection, leg


def test_whole_chunks_pass_the_leg_by_and_the_end_does_not():
    connection, leg = passing()
    connection.data_received(chunk(b"a" * 300))
    connection.data_received(chunk(b"b"))
    assert leg.whole == [chunk(b"a" * 300), chunk(b"b")] and len(leg.answers) == 1
    connection.data_received(b"0\r\n\r\n")
    assert leg.answers[-1] == (200, b"", True) and connection.take_chunk is None
    connection.send(second := Heard(), b"")
    connection.data_received(CHUNKED + chunk(b"x"))
    connection.data_received(chunk(b"y"))
    assert [body for _, body, _ in second.answers] == [b"x", b"y"], "it is not the next leg's"


@pytest.mark.parametrize("size", [1, 9, 15, 16, 17, 255, 256, 257, 4095, 4096, 70_000])
def test_a_chunk_passes_by_whatever_its_size_and_however_its_digits_are_written(size):
    connection, leg = passing()
    reads = [chunk(b"a" * size), b"%X\r\n%b\r\n" % (size, b"b" * size)]
    for read in reads:
        connection.data_received(read)
    assert leg.whole == reads and leg.content == b"first" + b"a" * size + b"b" * size


@pytest.mark.parametrize(
    "read",
    [
        b"05\r\nhello\r\n",
        b"5;a=b\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5\r\nhello\r\n1\r\nx\r\n",
        b"5\r\nhello",
        b"4\r\nhello\r\n",
        b"10\r\n" + b"x" * 15 + b"\r\n",
        b"0\r\n\r\n",
    ],
)
def test_only_a_chunk_in_its_plain_form_passes_by(read):
    connection, leg = passing()
    connection.data_received(read)
    assert leg.whole == []


def test_wherever_a_stream_is_cut_its_content_is_the_same():
    # Chunks whose content looks like chunks, and a size that is another one's end.
    contents = [b"5\r\nhello\r\n", b"x" * 21, b"0\r\n\r\n", b"z" * 5, b"3\r\nabc\r\n" * 2]
    raw = b"".join(map(chunk, contents)) + b"0\r\n\r\n"
    for first in range(len(raw)):
        for second in range(first, len(raw), 3):
            connection, leg = passing()
            for read in (raw[:first], raw[first:second], raw[second:]):
                if read:
                    connection.data_received(read)
            assert leg.content == b"first" + b"".join(contents), (first, second)
            assert leg.answers[-1][2] and not leg.lost


def test_nothing_passes_by_what_was_aborted_or_lost():
    connection, _ = passing()
    connection.abort()
    assert connection.take_chunk is None
    connection, _ = passing()
    connection.connection_lost(None)
    assert connection.take_chunk is None


@pytest.mark.parametrize("size", [10**9, 7])
def test_trailers_are_no_headers(size):
    connection, _, pool, leg = sent()
    raw = CHUNKED + chunk(b"hello") + b"0\r\nSet-Cookie: a=b\r\nX-Late: 1\r\n\r\n"
    for start in range(0, len(raw), size):
        connection.data_received(raw[start : start + size])
    assert leg.answers[-1][2] and pool.put_back == [connection]
    assert connection.headers == [(b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize("trailers", [b"a: %b\r\n" % (b"b" * 990), b"a" * 1000])
def test_endless_trailers_are_a_loss(trailers):
    connection, transport, _, leg = sent()
    connection.data_received(CHUNKED + chunk(b"hello") + b"0\r\n" + (b"X: " if b":" not in trailers else b""))
    for _ in range(MAX_HEAD_BYTES // 900 + 1):
        if not transport.aborted:
            connection.data_received(trailers)
    assert len(leg.lost) == 1 and transport.aborted


def test_the_framing_of_a_long_stream_is_no_trailer():
    connection, transport, _, leg = sent()
    connection.data_received(CHUNKED)
    for _ in range(MAX_HEAD_BYTES // 3 + 1):
        connection.data_received(b"1\r\n")
        connection.data_received(b"x\r\n")
    assert not leg.lost and not transport.aborted
