"""Relay: vLLM's answer on its way to whoever asked, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import httpx

from engine_shim.serve.reply import Headers, Reply
from router.contract.errors import EngineDown

PASSED_UP = ("content-type", "accept", "authorization", "traceparent", "tracestate", "x-vllm-priority", "x-session-id")
"""Headers that vLLM gets as the client sent them."""
PASSED_DOWN = (b"content-type", b"retry-after", b"cache-control", b"x-accel-buffering")


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


async def relay(client: httpx.AsyncClient, request: httpx.Request, reply: Reply, around: Around) -> None:
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
