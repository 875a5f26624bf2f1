"""The HTTP face in front of vLLM: its own routes go through; the two that can hand KV cache over are legs.

vLLM begins a stream before it has a token. Here nothing is answered before vLLM has something to say, so a KV cache
that does not come is an HTTP status, as with every engine of ours.
"""

from __future__ import annotations

import asyncio
from asyncio import Event
from collections.abc import Coroutine
from dataclasses import dataclass

import httpx
from fastapi import APIRouter, FastAPI, Response
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from engine_shim.driver import Driver, Stream
from engine_shim.engine.port import FinishReason, SamplingParams, SequenceRequest, TokensOut
from engine_shim.engine.vllm.restarts import Restarts
from engine_shim.serve.http_body import ClientGone, headers_of, read_body
from engine_shim.serve.inference import unless_gone
from engine_shim.serve.intake import Endpoint
from engine_shim.serve.metrics import CONTENT_TYPE, ShimMetrics
from engine_shim.serve.problems import as_problem, on_client_gone, on_problem
from engine_shim.serve.reply import Reply
from engine_shim.serve.routes import ready_routes
from engine_shim.serve.timing import timing_headers
from engine_shim.serve.vllm_leg import Leg, read_leg
from engine_shim.serve.vllm_relay import Around, passed_up, relay
from engine_shim.settings import ShimSettings
from router.contract.errors import TandemError
from router.contract.wire import REQUEST_ID_HEADER, PrefillHandoff

ANSWER_WAIT_S = 1.0
"""After vLLM's answer to a prefill, until its blocks must have been told of; the two ways are not ordered."""


@dataclass(frozen=True, slots=True)
class Front:
    """What every request is served with."""

    driver: Driver
    client: httpx.AsyncClient
    """Calls vLLM."""
    secret: str
    restarts: Restarts
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
        echoed = (REQUEST_ID_HEADER.lower().encode(), leg.request_id.encode("latin-1"))

        async def before_end(status: int) -> None:
            if status == httpx.codes.OK and await _has_answer(leg, stream):
                driver.on_engine_events([TokensOut(stream.seq_id, (), "", finish_reason=FinishReason.STOP)])

        around = Around(lambda: (echoed, *timing_headers(stream, began_at)), before_end)

        def ask(body: bytes) -> Coroutine[None, None, None]:
            up = passed_up(headers, leg.request_id)
            request = self._front.client.build_request("POST", self._path, content=body, headers=up)
            return relay(self._front.client, request, reply, around)

        restart = self._front.restarts.expect(stream.seq_id)
        try:
            if not await _answered(ask(leg.body(self._front.secret, stream.seq_id)), stream, restart):
                await _answered(ask(leg.body_alone()), stream, Event())
        finally:
            self._front.restarts.forget(stream.seq_id)
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
            await unless_gone(relay(self._front.client, request, reply, Around()), receive)
        except ClientGone:
            return
        # The request's own boundary, as in LegRoute.
        except Exception as error:  # noqa: BLE001
            await reply.fail(as_problem(error))


async def _answered(relaying: Coroutine[None, None, None], stream: Stream, restart: Event) -> bool:
    """True when vLLM's answer has been passed on; False when the sequence is to be asked for anew. Whatever it is, this
    call of vLLM is over. Raises the sequence's error as soon as it has failed."""
    passing, failing, anew = (asyncio.ensure_future(one) for one in (relaying, _failure(stream), restart.wait()))
    try:
        await asyncio.wait((passing, failing, anew), return_when=asyncio.FIRST_COMPLETED)
        if not passing.done() and failing.done():
            failing.result()
            await passing
        if passing.done():
            passing.result()
        return passing.done()
    finally:
        for task in (passing, failing, anew):
            task.cancel()
        await asyncio.wait((passing, failing, anew))


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
