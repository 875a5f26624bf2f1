"""The HTTP face in front of vLLM: its own routes go through; the two that can hand KV cache over are legs.

vLLM begins a stream before it has a token. Here nothing is answered before vLLM has something to say, so a KV cache
that does not come is an HTTP status, as with every engine of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass

import httpx
from fastapi import APIRouter, FastAPI, Response
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from engine_shim.driver import Driver, Stream
from engine_shim.engine.port import FinishReason, SamplingParams, SequenceRequest, TokensOut
from engine_shim.serve.http_body import ClientGone, headers_of, read_body
from engine_shim.serve.inference import unless_gone
from engine_shim.serve.intake import Endpoint
from engine_shim.serve.metrics import CONTENT_TYPE, ShimMetrics
from engine_shim.serve.problems import as_problem, on_client_gone, on_problem
from engine_shim.serve.reply import Headers, Reply
from engine_shim.serve.routes import ready_routes
from engine_shim.serve.timing import timing_headers
from engine_shim.serve.vllm_leg import Leg, read_leg
from engine_shim.settings import ShimSettings
from router.contract.errors import EngineDown, TandemError
from router.contract.wire import REQUEST_ID_HEADER, PrefillHandoff

PASSED_UP = ("content-type", "accept", "authorization", "traceparent", "tracestate", "x-vllm-priority", "x-session-id")
"""Headers that vLLM gets as the client sent them."""
PASSED_DOWN = (b"content-type", b"retry-after", b"cache-control", b"x-accel-buffering")
ANSWER_WAIT_S = 1.0
"""After vLLM's answer to a prefill, until its blocks must have been told of; the two ways are not ordered."""


@dataclass(frozen=True, slots=True)
class Front:
    """What every request is served with."""

    driver: Driver
    client: httpx.AsyncClient
    """Calls vLLM."""
    secret: str
    settings: ShimSettings
    metrics: ShimMetrics


def build_vllm_app(front: Front, side_channel: APIRouter) -> FastAPI:
    """An ASGI app in front of vLLM; every error of ours leaves it in OpenAI's envelope."""
    app = FastAPI(title="Tandem shim", docs_url=None, redoc_url=None, openapi_url=None)
    for endpoint, path in ((Endpoint.CHAT, "/v1/chat/completions"), (Endpoint.COMPLETION, "/v1/completions")):
        app.router.routes.append(Route(path, LegRoute(endpoint, path, front), methods=["POST"]))
    app.include_router(ready_routes(front.driver))
    app.include_router(_metrics_route(front))
    app.include_router(side_channel)
    for kind in (TandemError, HTTPException, Exception):
        app.add_exception_handler(kind, on_problem)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.router.routes.append(Mount("/", Passage(front)))
    return app


class LegRoute:
    """ASGI endpoint of a path that can hand KV cache over."""

    def __init__(self, endpoint: Endpoint, path: str, front: Front) -> None:
        """Serve `path`."""
        self._endpoint, self._path, self._front = endpoint, path, front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request is answered, or its client has gone and nothing of it runs any more."""
        reply, began_at = Reply(send), asyncio.get_running_loop().time()
        code = "ok"
        try:
            headers = headers_of(scope)
            raw = await read_body(scope, receive, self._front.settings.max_body_bytes)
            leg = read_leg(raw, headers, self._front.settings.request_for_s)
            await unless_gone(self._answer(leg, headers, reply, began_at), receive)
        except ClientGone:
            code = "ok" if reply.ended else "client_gone"
        # The request's own boundary: whatever it fails with, its client hears of it and others are served on.
        except Exception as error:  # noqa: BLE001
            problem = as_problem(error)
            code = problem.code
            await reply.fail(problem)
        self._front.metrics.count_request(self._endpoint, code)

    async def _answer(self, leg: Leg, headers: dict[str, str], reply: Reply, began_at: float) -> None:
        driver = self._front.driver
        # vLLM reads the prompt; to the Driver it is a sequence of a known purpose and name.
        sequence = SequenceRequest(leg.request_id, (0,), SamplingParams(max_tokens=1))
        stream = await driver.submit(sequence, leg.handoff, leg.deadline_for_s)
        try:
            body = leg.body(self._front.secret, stream.seq_id)
            request = self._front.client.build_request(
                "POST", self._path, content=body, headers=passed_up(headers, leg.request_id)
            )

            echoed = (REQUEST_ID_HEADER.lower().encode(), leg.request_id.encode("latin-1"))

            def head() -> Headers:
                return (echoed, *timing_headers(stream, began_at))

            async def before_end(status: int) -> None:
                if status == httpx.codes.OK and await _has_answer(leg, stream):
                    driver.on_engine_events([TokensOut(stream.seq_id, (), "", finish_reason=FinishReason.STOP)])

            await _unless_failed(_relay(self._front.client, request, reply, Around(head, before_end)), stream)
        finally:
            stream.close()


class Passage:
    """ASGI endpoint of all other paths: vLLM's own."""

    def __init__(self, front: Front) -> None:
        """Pass on."""
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """vLLM has answered, or its client has gone."""
        if scope["type"] != "http":
            return
        reply = Reply(send)
        try:
            headers = headers_of(scope)
            raw = await read_body(scope, receive, self._front.settings.max_body_bytes)
            path = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
            request = self._front.client.build_request(
                scope["method"], path, content=raw, headers=passed_up(headers, headers.get("x-request-id", ""))
            )
            await unless_gone(_relay(self._front.client, request, reply, Around()), receive)
        except ClientGone:
            return
        # The request's own boundary, as in LegRoute.
        except Exception as error:  # noqa: BLE001
            await reply.fail(as_problem(error))


def passed_up(headers: dict[str, str], request_id: str) -> dict[str, str]:
    """The headers that vLLM gets."""
    kept = {name: headers[name] for name in PASSED_UP if name in headers}
    return {**kept, "x-request-id": request_id} if request_id else kept


async def _nothing(_status: int) -> None:
    """A passage owes nobody anything."""


@dataclass(frozen=True, slots=True)
class Around:
    """What is ours in an answer of vLLM's."""

    headers: Callable[[], Headers] = tuple
    """Asked for when the first piece is there."""
    before_end: Callable[[int], Awaitable[None]] = _nothing
    """With the status, before the last piece goes out: the client may leave as soon as it has that."""


async def _relay(client: httpx.AsyncClient, request: httpx.Request, reply: Reply, around: Around) -> None:
    """vLLM's answer has been passed on, piece by piece. Its head goes out with the first piece."""
    try:
        answer = await client.send(request, stream=True)
    except httpx.HTTPError as error:
        raise EngineDown("vLLM does not answer; this instance cannot serve now.") from error
    headers = tuple((name.lower(), value) for name, value in answer.headers.raw if name.lower() in PASSED_DOWN)
    try:
        async with aclosing(_pieces(answer)) as pieces:
            held = await anext(pieces, b"")
            headers += around.headers()
            async for piece in pieces:
                await reply.pass_on(answer.status_code, headers, held, last=False)
                held = piece
            await around.before_end(answer.status_code)
            await reply.pass_on(answer.status_code, headers, held, last=True)
    except httpx.HTTPError as error:
        raise EngineDown("vLLM broke off in the middle of its answer.") from error
    finally:
        await answer.aclose()


async def _pieces(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for piece in answer.aiter_raw():
        if piece:
            yield piece


async def _unless_failed(relaying: Coroutine[None, None, None], stream: Stream) -> None:
    """Await `relaying`, but cancel it and raise the sequence's error as soon as it has failed."""
    relay = asyncio.ensure_future(relaying)
    failing = asyncio.ensure_future(_failure(stream))
    try:
        await asyncio.wait((relay, failing), return_when=asyncio.FIRST_COMPLETED)
        if not relay.done():
            failing.result()
        await relay
    finally:
        for task in (relay, failing):
            if not task.done():
                task.cancel()
        await asyncio.wait((relay, failing))


async def _failure(stream: Stream) -> None:
    async for _ in stream:
        continue


async def _has_answer(leg: Leg, stream: Stream) -> bool:
    """False for a prefill that vLLM ended without blocks to hand over."""
    if not isinstance(leg.handoff, PrefillHandoff):
        return True
    for _ in range(100):
        if stream.answer is not None:
            return True
        await asyncio.sleep(ANSWER_WAIT_S / 100)
    return False


def _metrics_route(front: Front) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        try:
            engine = (await front.client.get("/metrics", timeout=5.0)).content
        except httpx.HTTPError:
            engine = b""
        return Response(front.metrics.text() + engine, headers={"content-type": CONTENT_TYPE})

    return router
