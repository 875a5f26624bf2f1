"""Plain vLLM servers with NIXL connectors, scripted: what they answer, and how they break, is as vLLM 0.32 and 0.33 do.

A `Wire` is what lies between the connectors: side channels by (host, port), and what prefill has finished or decode has
registered under a base id. Blocks are counted, so that a test sees what stays held. No clock: leases end when told.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from uuid import uuid4

_SUFFIX = re.compile(r"-[0-9a-f]{8}$")


@dataclass(slots=True)
class Wire:
    """What connects the engines of one test."""

    channels: dict[tuple[str, int], VllmServer] = field(default_factory=dict)
    handshaken: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Seen:
    """One inference request, as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, object]
    aborted: bool = False

    @property
    def params(self) -> dict[str, object]:
        return self.body.get("kv_transfer_params") or {}  # type: ignore[return-value]


@dataclass(slots=True)
class VllmServer:
    """One server process. `restart` is another one at the same address."""

    wire: Wire
    mode: str = "push"
    names: tuple[str, ...] = ("m",)
    loras: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Of its /openapi.json."""
    version: str = "0.33.0"
    block_tokens: int = 128
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    tells_start: bool = True
    """Its metrics have process_start_time_seconds; with several API servers they have not."""
    healthy: bool = True
    has_connector: bool = True
    waiting: int = 0
    decode_gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Decodes leave its queue, and register, once it is set."""
    expired: int = 0
    """Leases that have ended."""
    prefill_gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Prefills end once it is set."""
    fail_prefill: int = 0
    """Status of prefill answers, or 0 for good ones."""
    loses_writes: int = 0
    """So many prefills, from now on, end well and are never written."""
    refuse_decode: int = 0
    """Status of decode answers before anything is registered, or 0."""
    dead: bool = False
    """EngineCore has died; nothing is answered any more."""
    seen: list[Seen] = field(default_factory=list)
    probes: list[Seen] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    """Base ids whose blocks are not free: of prefill until they have been fetched, of decode until they are written."""
    engine_id: str = ""
    starts: int = 0
    url: str = ""
    _finished: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, port: int = 0) -> str:
        self.prefill_gate.set()
        self.decode_gate.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._begin()
        return self.url

    def _begin(self) -> None:
        self.engine_id, self.starts = str(uuid4()), self.starts + 1
        self.held, self._finished = set(), {}
        for rank in range(self.dp_size):
            self.wire.channels["127.0.0.1", self.side_port + rank] = self

    @property
    def side_port(self) -> int:
        return 20000 + int(self.url.rpartition(":")[2]) % 20000

    def rank_id(self, rank: int) -> str:
        return f"{self.engine_id}_dp{rank}" if self.dp_size > 1 else self.engine_id

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Its connections break; it goes on."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def end_leases(self) -> None:
        """KV that nobody has come for is freed, and nobody is told."""
        self.expired += len(self.held)
        for base_id in self.held:
            del self._finished[base_id]
        self.held.clear()

    async def restart(self) -> None:
        """The process ends and another one starts at the same address, with another engine id."""
        port = int(self.url.rpartition(":")[2])
        await self.stop()
        await self.start(port)

    # HTTP.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while not self.dead:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if method == "GET":
                    status, kind, answer = self._get(path)
                else:
                    status, kind, answer = await self._watched(reader, Seen(path, headers, json.loads(body)))
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
                    % (status, kind, len(answer), answer)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # asyncio reports a cancelled connection as an error of its own
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _watched(self, reader: asyncio.StreamReader, seen: Seen) -> tuple[int, bytes, bytes]:
        """The answer, unless the connection closes first: then the request is aborted."""
        probe = str(seen.headers.get("x-request-id", "")).startswith("probe-")
        (self.probes if probe else self.seen).append(seen)
        answer = asyncio.ensure_future(self._infer(seen))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                seen.aborted = True
                raise ConnectionError
            return answer.result()
        finally:
            for one in (answer, gone):
                one.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    def _get(self, path: str) -> tuple[int, bytes, bytes]:
        if path == "/health":
            return (200 if self.healthy else 503), b"text/plain", b""
        if path == "/version":
            return 200, b"application/json", json.dumps({"version": self.version}).encode()
        if path == "/metrics":
            return 200, b"text/plain", self._metrics().encode()
        if path == "/openapi.json":
            return 200, b"application/json", json.dumps({"paths": {path: {} for path in self.paths}}).encode()
        if path == "/v1/models":
            cards = [{"id": name, "root": "/models/m", "parent": None, "max_model_len": 1024} for name in self.names]
            cards += [{"id": name, "root": f"/l/{name}", "parent": self.names[0]} for name in self.loras]
            return 200, b"application/json", json.dumps({"object": "list", "data": cards}).encode()
        return 404, b"application/json", b'{"detail":"Not Found"}'

    def _metrics(self) -> str:
        started = f"process_start_time_seconds {1.7e9 + self.starts}\n" if self.tells_start else ""
        ranks = [
            f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} 3.0\n'
            f'vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} {float(self.waiting)}\n'
            f'vllm:nixl_num_kv_expired_reqs_total{{engine="{rank}",model_name="m"}} {float(self.expired)}\n'
            f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.25\n'
            f'vllm:cache_config_info{{block_size="{self.block_tokens}",cache_dtype="auto",engine="{rank}",'
            f'num_gpu_blocks="64",sliding_window="None"}} 1.0\n'
            for rank in range(self.dp_size)
        ]
        return f"# HELP python_info Python\n{started}" + "".join(ranks)

    # The engine.

    async def _infer(self, seen: Seen) -> tuple[int, bytes, bytes]:
        params, body = seen.params, seen.body
        if body.get("stream") is not True and "stream_options" in body:
            return self._error(400, "Stream options can only be defined when `stream=True`.")
        if int(body.get("min_tokens", 0)) > int(body.get("max_tokens") or 16):  # type: ignore[call-overload]
            return self._error(400, "min_tokens must be less than or equal to max_tokens")
        if params.get("do_remote_decode"):
            return await self._prefill(seen)
        if params.get("do_remote_prefill"):
            return await self._decode(seen)
        return self._text(seen, "local")

    def _base_id(self, seen: Seen) -> str:
        """vLLM's internal id, less the random suffix that it adds."""
        own = seen.headers["x-request-id"]
        internal = f"chatcmpl-{own}" if "chat" in seen.path else f"cmpl-{own}-0"
        return _SUFFIX.sub("", f"{internal}-{uuid4().hex[:8]}")

    async def _prefill(self, seen: Seen) -> tuple[int, bytes, bytes]:
        await self.prefill_gate.wait()
        if self.fail_prefill:
            return self._error(self.fail_prefill, "scripted")
        rank = int(seen.headers.get("x-data-parallel-rank", "0"))
        base_id = self._base_id(seen)
        params: dict[str, object] | None = None
        if self.has_connector:
            self.held.add(base_id)
            done = self._finished.setdefault(base_id, asyncio.get_running_loop().create_future())
            if self.loses_writes:
                self.loses_writes -= 1
            elif not done.done():
                done.set_result(None)
            params = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[1]],
                "remote_engine_id": self.rank_id(rank),
                "remote_request_id": f"{base_id}-{uuid4().hex[:8]}",
                "remote_host": "127.0.0.1",
                "remote_port": self.side_port + rank,
                "tp_size": self.tp_size,
                "dcp_size": 1,
                "pp_size": self.pp_size,
                "remote_num_tokens": 5,
                "remote_blocks_expiry_time": None,
                "transfer_mode": self.mode,
                "remote_prefill_cached_tokens": 0,
            }
        return self._text(seen, "p", params)

    async def _decode(self, seen: Seen) -> tuple[int, bytes, bytes]:
        params = seen.params
        if self.refuse_decode:
            return self._error(self.refuse_decode, "scripted")
        needed = {"remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id"}
        if self.mode == "pull":
            needed.add("remote_block_ids")
        if not needed <= {name for name, value in params.items() if value not in (None, [], "")}:
            self.dead = True  # the scheduler raises KeyError, and EngineCore ends
            return self._error(500, "EngineDeadError")
        await self.decode_gate.wait()
        base_id = self._base_id(seen)
        peer = self.wire.channels.get((str(params["remote_host"]), int(params["remote_port"])))  # type: ignore[call-overload]
        ids = [] if peer is None else [peer.rank_id(rank) for rank in range(peer.dp_size)]
        if params["remote_engine_id"] not in ids or peer is None:
            return self._error(500, "Handshake with remote engine failed")
        if self.mode != peer.mode or (params["tp_size"], params.get("pp_size", 1)) != (peer.tp_size, peer.pp_size):
            return self._error(500, "Handshake with remote engine failed")
        self.held.add(base_id)
        if self.mode == "push":
            done = peer._finished.setdefault(base_id, asyncio.get_running_loop().create_future())
            done.add_done_callback(lambda _: self.held.discard(base_id))  # aborted or not, only the WRITE frees them
            await asyncio.shield(done)
            peer.held.discard(base_id)
        else:
            fetched = _SUFFIX.sub("", str(params["remote_request_id"]))
            if fetched not in peer.held:
                return self._error(500, "KV load failed")
            peer.held.discard(fetched)
            self.held.discard(base_id)
        return self._text(seen, f"kv of {peer.rank_id(0)}")

    def _text(self, seen: Seen, text: str, params: object = None) -> tuple[int, bytes, bytes]:
        choice = {"index": 0, "text": text, "finish_reason": "length"}
        if seen.body.get("stream") is True:
            event = json.dumps({"id": "c", "object": "text_completion", "choices": [choice]})
            return 200, b"text/event-stream", f"data: {event}\n\ndata: [DONE]\n\n".encode()
        answer = {"id": "c", "object": "text_completion", "choices": [choice], "kv_transfer_params": params}
        return 200, b"application/json", json.dumps(answer, separators=(",", ":")).encode()

    def _error(self, status: int, message: str) -> tuple[int, bytes, bytes]:
        error = {"message": message, "type": "InternalServerError", "param": None, "code": status}
        return status, b"application/json", json.dumps({"error": error}).encode()
