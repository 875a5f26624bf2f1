"""One load: every request of a schedule sent when it is due, and what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from router.bench.connection import Client, Exchange
from router.bench.measures import Record
from router.bench.schedule import Due
from router.bench.sse import DONE, Answer, EventSplitter, Usage, read_answer
from router.contract.errors import LegError


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests are put."""

    model: str
    chat: bool = True
    """Chat completions, else completions."""
    stream: bool = True
    ignore_eos: bool = True
    """Ask for exactly the wanted number of tokens (vLLM's extension); OpenAI's own API does not know it."""

    @property
    def path(self) -> str:
        """The route."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: str, output_tokens: int) -> bytes:
        """Return the JSON body of one greedy request."""
        wanted: dict[str, object] = {"model": self.model, "max_tokens": output_tokens, "temperature": 0}
        wanted |= {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        if self.stream:
            wanted |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.ignore_eos:
            wanted["ignore_eos"] = True
        return msgspec.json.encode(wanted)


class Reply:
    """Reads one answer while it arrives."""

    def __init__(self, *, stream: bool, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; it is read once for each piece that arrives."""
        self._stream = stream
        self._clock = clock
        self._events = EventSplitter()
        self._body = bytearray()
        self.output_at_s: list[float] = []
        self.usage: Usage | None = None
        self.failure = ""
        self._is_done = False

    def on_body(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        if not self._stream:
            self._body += piece
            return
        now_s = self._clock()
        for payload in self._events.feed(piece):
            self._on_event(payload, now_s)

    def on_end(self, status: int) -> None:
        """The answer has ended; `failure` tells whether properly."""
        if status != 200:
            refused = read_answer(self._events.rest if self._stream else bytes(self._body))
            self.failure = refused.error.name if refused and refused.error else f"http_{status}"
        elif not self._stream:
            self._on_answer(read_answer(bytes(self._body)), self._clock())
        elif not self._is_done:
            self.failure = self.failure or "stream_cut"

    def _on_event(self, payload: bytes, now_s: float) -> None:
        if payload == DONE:
            self._is_done = True
        else:
            self._on_answer(read_answer(payload), now_s)

    def _on_answer(self, answer: Answer | None, now_s: float) -> None:
        if answer is None:
            self.failure = self.failure or "not_json"
            return
        if answer.error is not None:
            self.failure = self.failure or answer.error.name
        if answer.has_output:
            self.output_at_s.append(now_s)
        self.usage = answer.usage or self.usage


class Load:
    """Sends requests to one target. `on_progress(ended)` is called after each request of a schedule."""

    def __init__(self, client: Client, dialect: Dialect, *, timeout_s: float, cap: int | None = None) -> None:
        """At most `cap` requests are in flight; those that wait for their turn are late, and their latency shows it."""
        self._client = client
        self._dialect = dialect
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(cap) if cap else None

    async def run(
        self, schedule: Sequence[Due], prompts: Sequence[str], on_progress: Callable[[int], None]
    ) -> tuple[Record, ...]:
        """Send `prompts[i]` when `schedule[i]` is due, whatever earlier answers do; return Records in that order."""
        requests = [
            self._client.request(self._dialect.path, self._dialect.body(prompt, due.output_tokens))
            for due, prompt in zip(schedule, prompts, strict=True)
        ]
        loop = asyncio.get_running_loop()
        start_at = loop.time()
        ended = 0

        def count(_: asyncio.Task[Record]) -> None:
            nonlocal ended
            ended += 1
            on_progress(ended)

        async with asyncio.TaskGroup() as tasks:
            sent = []
            for due, request in zip(schedule, requests, strict=True):
                await asyncio.sleep(start_at + due.at_s - loop.time())
                task = tasks.create_task(self._send(due, request, start_at))
                task.add_done_callback(count)
                sent.append(task)
        return tuple(task.result() for task in sent)

    async def _send(self, due: Due, request: bytes, start_at: float) -> Record:
        if self._turns is None:
            return await self._exchange(due, request, start_at)
        async with self._turns:
            return await self._exchange(due, request, start_at)

    async def _exchange(self, due: Due, request: bytes, start_at: float) -> Record:
        clock = asyncio.get_running_loop().time
        reply = Reply(stream=self._dialect.stream, clock=lambda: clock() - start_at)
        exchange = Exchange(request, reply.on_body)
        sent_s = clock() - start_at
        try:
            await self._client.perform(exchange, self._timeout_s)
            reply.on_end(exchange.status)
        except LegError as error:
            reply.failure = reply.failure or error.code
        usage = reply.usage or Usage(0, len(reply.output_at_s))
        return Record(
            index=due.index,
            due_s=due.at_s,
            sent_s=sent_s,
            ended_s=clock() - start_at,
            output_at_s=tuple(reply.output_at_s),
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            status=exchange.status,
            failure=reply.failure,
        )
