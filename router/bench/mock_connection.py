"""One connection to a mock engine: requests are read, answered as the engine's Behaviour says, and end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools

from router.bench.mock_behaviour import Behaviour, Fault, Seen
from router.contract.errors import BadRequest
from router.contract.ids import TransferId
from router.contract.rendezvous import PrefillDone
from router.contract.seal import CANCEL, SEAL_HEADER
from router.contract.wire import Handoff, PrefillHandoff, answer_params, read_handoff
from router.store.codec import encode_instance

if TYPE_CHECKING:
    from router.bench.mock_engine import MockEngine

DONE = b"data: [DONE]\n\n"
SMALL_BYTES = 64 * 1024
"""A stream up to this size without gaps is written at once."""


class MockConnection(asyncio.Protocol):
    """One connection to the engine."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._current: Seen | None = None
        self._busy = False
        self._writable: Callable[[], None] | None = None
        self.written = 0
        """Bytes handed to the transport so far."""
        self._paused = False
        self._path = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    @property
    def waiting(self) -> bool:
        """A stream is held back because the other side does not read."""
        return self._writable is not None

    # Event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The request that was being answered is over, unless nobody is to notice."""
        self._engine.connections.discard(self)
        if self._busy and not self._engine.behaviour.half_open:
            self._cancel_timer()
            self._end_request()
            if self._current is not None:
                self._current.aborted = True

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._cancel_timer() if not self._busy else None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.cut()  # such as another router that tries HTTP/2

    def pause_writing(self) -> None:
        """Hold the stream back."""
        self._paused = True

    def resume_writing(self) -> None:
        """The stream goes on."""
        self._paused = False
        go_on, self._writable = self._writable, None
        if go_on is not None:
            go_on()

    # Parser.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._path, self._headers, self._body = b"", [], []

    def on_url(self, url: bytes) -> None:
        """Part of its path."""
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        """Part of its body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is whole: answer it."""
        if self._engine.api_key and self._headers_by_name().get("authorization") != f"Bearer {self._engine.api_key}":
            self._send_json(401, b'{"error":{"message":"no key","type":"x","param":null,"code":"mock_unauthorized"}}')
            return
        if self._path == b"/kv/instance":
            self._send_json(200, encode_instance(self._engine.instance))
            return
        if self._path == b"/kv/cancel":
            self._take_back(b"".join(self._body))
            return
        if self._parser.get_method() == b"GET":
            ready = self._engine.behaviour.ready_status
            if ready:
                self._send_json(ready, b"{}")  # a health check
            return
        self._busy = True
        self._engine.num_open += 1
        headers = self._headers_by_name()
        body = b"".join(self._body)
        try:
            fields = json.loads(body)
            handoff = read_handoff(fields.get("kv_transfer_params"), headers.get("x-request-id", ""))
        except (ValueError, BadRequest) as error:
            self._send_json(400, json.dumps({"error": {"message": str(error), "code": "mock_refused"}}).encode())
            return
        self._current = Seen(self._path.decode(), headers, body, handoff)
        if self._engine.records:
            self._engine.seen.append(self._current)
            self._engine.running[headers.get("x-request-id", "")] = self
        delay_s = self._engine.behaviour.delay_s
        stream = fields.get("stream") is True
        if delay_s:
            self._timer = self._loop.call_later(delay_s, self._reply, stream, handoff)
        else:
            self._reply(stream, handoff)

    def _headers_by_name(self) -> dict[str, str]:
        return {name.decode().lower(): value.decode() for name, value in self._headers}

    def _take_back(self, body: bytes) -> None:
        """The attempt that `body` names is over here, unless the call is not sealed, or failing is the behaviour."""
        engine = self._engine
        status = engine.behaviour.cancel_status
        if not engine.seal.header_holds(CANCEL, body, self._headers_by_name().get(SEAL_HEADER.lower(), "")):
            status = 403
        if status == 200:
            transfer_id = json.loads(body)["transfer_id"]
            engine.taken_back.append(transfer_id)
            running = engine.running.get(transfer_id)
            if running is not None:
                running.drop()
        self._send_json(status, b"{}")

    def drop(self) -> None:
        """The request that is being answered is over, and its connection closed if there still is one."""
        self._cancel_timer()
        self._end_request()
        self.cut()

    # Answers.

    def _reply(self, stream: bool, handoff: Handoff | None) -> None:
        behaviour, fault = self._engine.behaviour, self._engine.take_fault()
        if fault is Fault.HANG:
            return
        if fault is Fault.CLOSE:
            self.cut()
        elif fault is Fault.GARBAGE:
            self._write(b"NOT HTTP AT ALL\r\n\r\n")
        elif fault is Fault.REFUSE:
            self._send_json(behaviour.status, behaviour.error_body)
        elif fault is Fault.EMPTY:
            self._send_json(200, b"")
        elif isinstance(handoff, PrefillHandoff):
            self._send_json(200, self._prefilled(handoff.transfer_id, fault), cut=fault is Fault.CUT)
        elif stream:
            self._stream(behaviour, fault)
        else:
            self._send_json(200, behaviour.answer, cut=fault is Fault.CUT)

    def _prefilled(self, transfer_id: TransferId, fault: Fault) -> bytes:
        identity = self._engine.instance.kv
        assert identity is not None
        params = answer_params(PrefillDone(transfer_id, (0,), 1), identity)
        hand_over = None if fault is Fault.NO_HAND_OVER else params
        return json.dumps({"id": "p", "choices": [], "kv_transfer_params": hand_over}).encode()

    def _send_json(self, status: int, body: bytes, *, cut: bool = False) -> None:
        more = b"".join(b"%b: %b\r\n" % header for header in self._engine.behaviour.headers)
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n" % (
            status,
            more,
            len(body),
        )
        if cut:
            self._write(head + body[: len(body) // 2])
            self.cut()
            return
        if self._busy:
            self._end_request()
        self._write(head + body)

    def _stream(self, behaviour: Behaviour, fault: Fault) -> None:
        more = b"".join(b"%b: %b\r\n" % header for header in behaviour.headers)
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n%btransfer-encoding: chunked\r\n\r\n"
            % more
        )
        event = _chunk(b"data: %b\n\n" % behaviour.event)
        small = len(event) * behaviour.num_events <= SMALL_BYTES
        if small and not behaviour.gap_s and fault is Fault.NONE and not behaviour.piece_bytes:
            self._end_request()
            self._write(event * behaviour.num_events + _chunk(DONE) + b"0\r\n\r\n")
            return
        self._send_event(behaviour, fault, 0)

    def _send_event(self, behaviour: Behaviour, fault: Fault, number: int) -> None:
        """Event `number`, then the next one after the gap; a paused connection is waited for."""
        if self._transport is None or self._transport.is_closing():
            return
        if fault is not Fault.NONE and number == behaviour.fault_after:
            if fault is Fault.CUT:
                self.cut()
                return
            if fault is Fault.STALL:
                return
            if fault is Fault.NO_END:
                self._end_request()
                self._write(b"0\r\n\r\n")
                return
        if number == behaviour.num_events:
            self._end_request()
            self._write(_chunk(DONE) + b"0\r\n\r\n")
            return
        self._write(_chunk(b"data: %b\n\n" % behaviour.event))
        go_on = lambda: self._send_event(behaviour, fault, number + 1)  # noqa: E731 - it is passed on, twice
        if self._paused:
            self._writable = go_on
        elif behaviour.gap_s:
            self._timer = self._loop.call_later(behaviour.gap_s, go_on)
        else:
            self._loop.call_soon(go_on)

    def _write(self, raw: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.written += len(raw)
        size = self._engine.behaviour.piece_bytes or len(raw)
        for start in range(0, len(raw), size):
            self._transport.write(raw[start : start + size])

    def _end_request(self) -> None:
        self._busy = False
        self._engine.num_open -= 1
        if self._engine.records and self._current is not None:
            self._engine.running.pop(self._current.headers.get("x-request-id", ""), None)
        idle_s = self._engine.behaviour.idle_close_s
        if idle_s:
            self._timer = self._loop.call_later(idle_s, self.cut)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cut(self) -> None:
        """Close the connection at once, after what has been written."""
        if self._transport is not None:
            self._transport.close()


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
