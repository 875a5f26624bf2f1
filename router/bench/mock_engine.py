"""MockEngine: an engine that computes nothing, answers as told, and fails as told.

It speaks the shim's contract on real sockets (identity at /kv/instance, hand-over parameters checked on both legs) and
costs little, so that a benchmark measures the router and a test can place any fault where it wants it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import httptools

from router.bench.mock_behaviour import Behaviour, Fault, Seen
from router.contract.errors import BadRequest
from router.contract.ids import Epoch, InstanceId, TransferId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Mode, Role
from router.contract.kv import KVLayout
from router.contract.rendezvous import PrefillDone
from router.contract.wire import Handoff, PrefillHandoff, answer_params, read_handoff
from router.store.codec import encode_instance

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_tokens=16, num_blocks=1, dtype="float32")
DONE = b"data: [DONE]\n\n"
SMALL_BYTES = 64 * 1024
"""A stream up to this size without gaps is written at once."""


@dataclass(slots=True)
class MockEngine:
    """One engine. `behaviour` may be changed at any time and holds from the next request on."""

    role: Role = Role.BOTH
    name: str = "mock"
    model: str = "m"
    epoch: int = 1
    modes: tuple[Mode, ...] = (Mode.PUSH, Mode.PULL)
    behaviour: Behaviour = field(default_factory=Behaviour)
    records: bool = True
    """Keep what was seen; off in benchmarks."""
    seen: list[Seen] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)
    """Transfers that the router said nobody would fetch."""
    num_open: int = 0
    """Requests that have been read and not been answered in full."""
    url: str = ""
    connections: set[_EngineProtocol] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> str:
        """Listening on loopback; returns the URL."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _EngineProtocol(self), "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def stop(self) -> None:
        """No longer listening; open connections are cut."""
        if self._server is not None:
            self._server.close()
            for connection in tuple(self.connections):
                connection.cut()
            await self._server.wait_closed()

    @property
    def instance(self) -> Instance:
        """Who it says it is."""
        instance_id, epoch = InstanceId(self.name), Epoch(self.epoch)
        engine_id = engine_id_of(instance_id, epoch)
        identity = KVIdentity(engine_id, "127.0.0.1", 1, LAYOUT, "mock", self.modes, takes_back=True)
        return Instance(instance_id, self.role, epoch, self.url, self.model, 4096, identity)

    def take_fault(self) -> Fault:
        """The fault for the next answer; one that is limited in `times` is used up."""
        behaviour = self.behaviour
        if behaviour.fault is Fault.NONE or behaviour.times == 0:
            return Fault.NONE
        if behaviour.times > 0:
            self.behaviour = replace(behaviour, times=behaviour.times - 1)
        return behaviour.fault


class _EngineProtocol(asyncio.Protocol):
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
        self._transport = cast(asyncio.Transport, transport)
        self._engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.connections.discard(self)
        self._cancel_timer()
        if self._busy:
            self._end_request()
            if self._current is not None:
                self._current.aborted = True

    def data_received(self, data: bytes) -> None:
        self._cancel_timer() if not self._busy else None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.cut()  # such as another router that tries HTTP/2

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        go_on, self._writable = self._writable, None
        if go_on is not None:
            go_on()

    # Parser.

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body = b"", [], []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._path == b"/kv/instance":
            self._send_json(200, encode_instance(self._engine.instance))
            return
        if self._path == b"/kv/cancel":
            self._engine.taken_back.append(json.loads(b"".join(self._body))["transfer_id"])
            self._send_json(200, b"{}")
            return
        if self._parser.get_method() == b"GET":
            self._send_json(200, b"{}")  # another router's health check
            return
        self._busy = True
        self._engine.num_open += 1
        headers = {name.decode().lower(): value.decode() for name, value in self._headers}
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
        delay_s = self._engine.behaviour.delay_s
        stream = fields.get("stream") is True
        if delay_s:
            self._timer = self._loop.call_later(delay_s, self._reply, stream, handoff)
        else:
            self._reply(stream, handoff)

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
