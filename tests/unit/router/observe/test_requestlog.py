import json
import threading

import msgspec

from router.core.record import Record
from router.observe.requestlog import MAX_PIECES, RequestLog


def record(name="req-1") -> Record:
    return Record(1.0, name, 'a"b', "m", "/v1/completions", True)


class Later:
    def __init__(self):
        self.calls = []

    def __call__(self, seconds, call):
        self.calls.append(call)


def test_lines_are_written_together_by_another_thread():
    later, pieces, thread = Later(), [], []

    def sink(piece):
        thread.append(threading.current_thread())
        pieces.append(piece)

    log = RequestLog(sink, later)
    log.tell(record("req-1"))
    log.tell(record("req-2"))
    assert not pieces and len(later.calls) == 1, "one timer for both"
    later.calls[0]()
    log.tell(record("req-3"))
    assert len(later.calls) == 2
    log.close()
    lines = [json.loads(line) for line in b"".join(pieces).splitlines()]
    assert [line["request_id"] for line in lines] == ["req-1", "req-2", "req-3"]
    assert lines[0]["client_id"] == 'a"b'
    assert len(pieces) == 2 and thread[0] is not threading.current_thread()


def test_a_reader_that_takes_nothing_costs_lines_not_time():
    later, stuck, entered = Later(), threading.Event(), threading.Event()

    def sink(piece):
        entered.set()
        stuck.wait()

    log = RequestLog(sink, later)
    log.tell(record())
    log.flush()
    entered.wait()
    for _ in range(MAX_PIECES + 3):
        log.tell(record())
        log.flush()
    assert log.dropped_bytes == 3 * len(msgspec.json.encode(record()) + b"\n")
    log.close(wait_s=0.01)
    stuck.set()


def test_a_reader_that_is_gone_is_survived():
    later = Later()

    def sink(piece):
        raise BrokenPipeError

    log = RequestLog(sink, later)
    log.tell(record())
    log.close()
    assert log.dropped_bytes == len(msgspec.json.encode(record()) + b"\n")


def test_flushing_nothing_is_nothing():
    pieces = []
    log = RequestLog(pieces.append, Later())
    log.flush()
    log.close()
    assert pieces == []
