"""The inference routes: a body in, an Intake, sequences on the engine, an answer out.

These are plain ASGI endpoints, because an answer's status waits for its first token and a client may leave at any time.
Per request there are two tasks, one that answers and one that watches for the client to leave; per token there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from engine_shim.driver import Driver, Stream
from engine_shim.engine.port import TokensOut
from engine_shim.serve.answer import Answer, Head
from engine_shim.serve.chat import ChatAnswer
from engine_shim.serve.completions import CompletionAnswer
from engine_shim.serve.http_body import ClientGone, headers_of, read_body
from engine_shim.serve.intake import Endpoint, Intake
from engine_shim.serve.merge import batches
from engine_shim.serve.metrics import ShimMetrics
from engine_shim.serve.openai_request import RequestReader
from engine_shim.serve.problems import as_problem
from engine_shim.serve.reply import Headers, Reply
from engine_shim.serve.timing import timing_headers
from router.contract.errors import Impossible
from router.contract.wire import REQUEST_ID_HEADER

INLINE_BODY_BYTES = 32 * 1024
"""Longer bodies are read, rendered and tokenized on a thread, so that other streams go on meanwhile."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What every request is served with."""

    driver: Driver
    reader: RequestReader
    metrics: ShimMetrics
    max_body_bytes: int


class InferenceRoute:
    """ASGI endpoint of /v1/chat/completions or /v1/completions."""

    def __init__(self, endpoint: Endpoint, serving: Serving) -> None:
        """Serve `endpoint`."""
        self._endpoint = endpoint
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request is answered, or its client has gone and nothing of it runs any more."""
        reply, began_at = Reply(send), time.monotonic()
        code = "ok"
        try:
            raw = await read_body(scope, receive, self._serving.max_body_bytes)
            intake = await self._read(raw, headers_of(scope))
            await unless_gone(self._answer(intake, reply, began_at), receive)
        except ClientGone:
            code = "client_gone"
        # The request's own boundary: whatever it fails with, its client hears of it and others are served on.
        except Exception as error:  # noqa: BLE001
            problem = as_problem(error)
            code = problem.code
            await reply.fail(problem)
        self._serving.metrics.count_request(self._endpoint, code)

    async def _read(self, raw: bytes, headers: dict[str, str]) -> Intake:
        reader = self._serving.reader
        if len(raw) <= INLINE_BODY_BYTES:
            return reader.read(self._endpoint, raw, headers)
        return await asyncio.to_thread(reader.read, self._endpoint, raw, headers)

    async def _answer(self, intake: Intake, reply: Reply, began_at: float) -> None:
        driver = self._serving.driver
        head = Head(intake.response_id, int(time.time()), driver.card.name)
        kind = ChatAnswer if self._endpoint is Endpoint.CHAT else CompletionAnswer
        answer = kind(intake, head, driver.tokenizer)
        headers = ((REQUEST_ID_HEADER.lower().encode(), intake.request_id.encode("latin-1")),)
        try:
            async with _running(driver, intake) as streams:
                write = _stream if intake.wishes.stream else _whole
                await write(answer, streams, reply, lambda: headers + timing_headers(streams[0], began_at))
        finally:
            self._serving.metrics.count_tokens(answer.tally)


@asynccontextmanager
async def _running(driver: Driver, intake: Intake) -> AsyncIterator[list[Stream]]:
    """All sequences of a request are queued; afterwards, however it ends, none of them runs.

    They are submitted together because each waits for the engine to end its step.
    """
    streams: dict[int, Stream] = {}

    async def submit(choice: int) -> None:
        sequence = intake.sequence(choice)
        streams[choice] = await driver.submit(sequence, intake.handoff, intake.deadline_for_s)

    submitting = [asyncio.create_task(submit(choice)) for choice in range(intake.num_choices)]
    try:
        try:
            await asyncio.gather(*submitting)
        finally:
            for task in submitting:
                task.cancel()
            await asyncio.wait(submitting)
        yield [streams[choice] for choice in range(intake.num_choices)]
    finally:
        for stream in streams.values():
            stream.close()


async def _stream(answer: Answer, streams: list[Stream], reply: Reply, head: Callable[[], Headers]) -> None:
    """One write per batch of the engine; the end mark goes with the last one."""
    num_open = len(streams)
    headers: Headers = ()
    async with aclosing(batches(streams)) as several:
        async for batch in several:
            headers = headers or head()
            payload = b"".join([answer.events(choice, output) for choice, output in batch])
            num_open -= sum(output.finish_reason is not None for _, output in batch)
            if num_open == 0:
                await reply.events(payload + answer.tail(), last=True, headers=headers)
                return
            await reply.events(payload, last=False, headers=headers)
    raise Impossible("A stream ended without a finish reason.")


async def _whole(answer: Answer, streams: list[Stream], reply: Reply, head: Callable[[], Headers]) -> None:
    outputs: list[list[TokensOut]] = [[] for _ in streams]
    async with aclosing(batches(streams)) as several:
        async for batch in several:
            for choice, output in batch:
                outputs[choice].append(output)
    if not all(each and each[-1].finish_reason is not None for each in outputs):
        raise Impossible("A stream ended without a finish reason.")
    await reply.json(answer.whole(outputs, streams[0].answer), headers=head())


async def unless_gone(answering: Coroutine[None, None, None], receive: Receive) -> None:
    """Await `answering`, but cancel it and raise ClientGone as soon as the client has left."""
    answer = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(_client_left(receive))
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not answer.done():
            answer.cancel()
            await asyncio.wait((answer,))
    if answer.cancelled():
        raise ClientGone
    answer.result()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
