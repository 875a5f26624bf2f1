"""The face in front of vLLM, with a Driver that only takes note and a vLLM that says what it is told to."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter

from engine_shim.driver.stream import Stream
from engine_shim.engine.port import EngineEvent, EngineLoad, SequenceRequest, TokensOut
from engine_shim.engine.vllm.restarts import Restarts
from engine_shim.serve.metrics import ShimMetrics
from engine_shim.serve.vllm_face import Front, build_vllm_app
from engine_shim.settings import ShimSettings
from router.contract import wire
from router.contract.errors import Draining, TandemError, TransferFailed
from router.contract.ids import EngineId, TransferId
from router.contract.instance import KVIdentity, Load, Mode
from tests.support.instances import decode

PUSH = wire.push_params(TransferId("t.1"), KVIdentity(EngineId("p@1"), "h", 1, None, "", (Mode.PUSH,)))
HOLD = wire.prefill_params(TransferId("t.1"))
CHAT = "/v1/chat/completions"
Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class NotingDriver:
    """Every sequence is accepted; `streams` are theirs."""

    streams: list[Stream] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    answer: dict[str, object] | None = None
    refusal: TandemError | None = None
    ready = True
    recall = None
    hand_over = None
    instance = decode().instance

    async def submit(self, request: SequenceRequest, handoff: object, deadline_for_s: float) -> Stream:
        if self.refusal is not None:
            raise self.refusal
        stream = Stream(f"seq:{request.seq_id}", lambda one: self.closed.append(one.seq_id))
        stream.answer = self.answer
        self.streams.append(stream)
        return stream

    def on_engine_events(self, events: list[EngineEvent]) -> None:
        for event in events:
            assert isinstance(event, TokensOut)
            self.finished.append(event.seq_id)
            self.streams[-1].push(event)

    def load(self) -> Load:
        return Load()

    def engine_load(self) -> EngineLoad:
        return EngineLoad(*[0] * 11)


class Vllm:
    """Answers each request with what it is told, after having noted it."""

    def __init__(self) -> None:
        self.answering: Answering = self.says(b'{"ok":1}')
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        self.left = asyncio.Event()
        """A caller has closed its connection."""

    def says(self, body: bytes, status: str = "200 OK") -> Answering:
        async def answer(out: asyncio.StreamWriter) -> None:
            out.write(f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n".encode())
            out.write(f"x-internal: 1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

        return answer

    async def serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.heard.append((head[0].rpartition(" ")[0], headers, body))
                await self.answering(out)
                await out.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            out.close()


@pytest.fixture
def driver() -> NotingDriver:
    return NotingDriver()


@pytest.fixture
async def vllm(tmp_path: Path) -> AsyncIterator[Vllm]:
    vllm = Vllm()
    server = await asyncio.start_unix_server(vllm.serve, tmp_path / "http")
    yield vllm
    server.close()


@pytest.fixture
def restarts() -> Restarts:
    return Restarts()


@pytest.fixture
async def client(
    driver: NotingDriver, vllm: Vllm, restarts: Restarts, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "http"))
    async with httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=None) as inner:
        settings = ShimSettings(max_body_bytes=4096, request_for_s=60.0)
        front = Front(driver, inner, "secret", restarts, settings, ShimMetrics(driver))  # type: ignore[arg-type]
        app = build_vllm_app(front, APIRouter())
        outer = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=outer, base_url="http://shim") as client:
            yield client


async def test_a_legs_answer_goes_through_and_its_sequence_ends(
    client: httpx.AsyncClient, driver: NotingDriver, vllm: Vllm
) -> None:
    headers = {"x-request-id": "t.1", "traceparent": "00-1", "cookie": "c"}
    answer = await client.post(CHAT, json={"model": "m", "kv_transfer_params": PUSH}, headers=headers)
    assert (answer.status_code, answer.json(), answer.headers["x-request-id"]) == (200, {"ok": 1}, "t.1")
    assert "x-internal" not in answer.headers
    line, sent, body = vllm.heard[0]
    assert (line, sent["traceparent"], "cookie" in sent) == (f"POST {CHAT}", "00-1", False)
    assert json.loads(body)["kv_transfer_params"]["tandem_seq_id"] == "seq:t.1"
    assert driver.finished == ["seq:t.1"]


async def test_when_kv_does_not_come_a_stream_is_an_http_status_and_vllm_is_left(
    client: httpx.AsyncClient, driver: NotingDriver, vllm: Vllm
) -> None:
    async def begin_a_stream(out: asyncio.StreamWriter) -> None:
        out.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await out.drain()
        driver.streams[-1].fail(TransferFailed("Prefill gave up."))

    vllm.answering = begin_a_stream
    answer = await client.post(CHAT, json={"stream": True, "kv_transfer_params": PUSH})
    assert (answer.status_code, answer.json()["error"]["code"]) == (TransferFailed.http_status, "transfer_failed")
    async with asyncio.timeout(5):
        await vllm.left.wait()
    assert driver.finished == []
    assert driver.closed


async def test_a_prompt_that_vllm_shall_compute_itself_is_asked_for_anew(
    client: httpx.AsyncClient, driver: NotingDriver, vllm: Vllm, restarts: Restarts
) -> None:
    plain = vllm.answering

    async def wait_for_kv(out: asyncio.StreamWriter) -> None:
        vllm.answering = plain
        restarts.ask(driver.streams[-1].seq_id)

    vllm.answering = wait_for_kv
    answer = await client.post(CHAT, json={"seed": 1, "kv_transfer_params": PUSH})
    assert (answer.status_code, answer.json()) == (200, {"ok": 1})
    first, second = (json.loads(body) for _, _, body in vllm.heard)
    assert ("kv_transfer_params" in first, second) == (True, {"seed": 1})
    assert driver.finished == [driver.streams[0].seq_id]
    await vllm.left.wait()


async def test_decode_tells_how_long_its_kv_took(client: httpx.AsyncClient, driver: NotingDriver, vllm: Vllm) -> None:
    plain = vllm.answering

    async def take_seats(out: asyncio.StreamWriter) -> None:
        driver.streams[-1].seated_at, driver.streams[-1].kv_ready_at = 1e9, 1e9 + 0.25
        await plain(out)

    vllm.answering = take_seats
    answer = await client.post(CHAT, json={"kv_transfer_params": PUSH})
    assert "kv;dur=250.000" in answer.headers["server-timing"]


async def test_what_vllm_refuses_goes_through_and_the_sequence_is_given_up(
    client: httpx.AsyncClient, driver: NotingDriver, vllm: Vllm
) -> None:
    vllm.answering = vllm.says(b'{"error":{"message":"no"}}', "400 Bad Request")
    answer = await client.post(CHAT, json={"kv_transfer_params": HOLD})
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": "no"}})
    assert driver.finished == []
    assert driver.closed


@pytest.mark.parametrize("answer", [None, {"remote_engine_id": "p@1"}], ids=["none", "held"])
async def test_a_prefill_is_done_when_its_blocks_are_held(
    client: httpx.AsyncClient,
    driver: NotingDriver,
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, object] | None,
) -> None:
    monkeypatch.setattr("engine_shim.serve.vllm_face.ANSWER_WAIT_S", 0.01)
    driver.answer = answer
    assert (await client.post(CHAT, json={"kv_transfer_params": HOLD})).status_code == 200
    assert bool(driver.finished) is (answer is not None)
    assert driver.closed


async def test_other_paths_are_vllms_own(client: httpx.AsyncClient, vllm: Vllm) -> None:
    assert (await client.get("/v1/models?x=1")).json() == {"ok": 1}
    assert (await client.post("/tokenize", content=b"raw")).json() == {"ok": 1}
    assert [(line, body) for line, _, body in vllm.heard] == [("GET /v1/models?x=1", b""), ("POST /tokenize", b"raw")]


async def test_metrics_are_ours_and_vllms(client: httpx.AsyncClient, vllm: Vllm) -> None:
    vllm.answering = vllm.says(b"vllm:num_requests_running 3.0\n")
    text = (await client.get("/metrics")).text
    assert "tandem_shim_held_blocks" in text
    assert "vllm:num_requests_running 3.0" in text


async def test_a_vllm_that_does_not_answer_is_an_engine_that_is_down(client: httpx.AsyncClient, vllm: Vllm) -> None:
    async def hang_up(out: asyncio.StreamWriter) -> None:
        out.close()

    vllm.answering = hang_up
    for path in (CHAT, "/v1/models"):
        answer = await client.post(path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_down")


async def test_a_shim_that_drains_refuses(client: httpx.AsyncClient, driver: NotingDriver) -> None:
    driver.refusal, driver.ready = Draining("This instance is shutting down."), False
    assert (await client.post(CHAT, json={})).json()["error"]["code"] == "draining"
    assert (await client.get("/readyz")).status_code == 503
    assert (await client.get("/healthz")).status_code == 200


async def test_a_body_that_is_too_large_never_reaches_vllm(client: httpx.AsyncClient, vllm: Vllm) -> None:
    for path in (CHAT, "/v1/embeddings"):
        assert (await client.post(path, content=b"x" * 5000)).status_code == 413
    assert vllm.heard == []
