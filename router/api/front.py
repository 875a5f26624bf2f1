"""Front: the ASGI application that uvicorn runs. Inference goes to an Exchange, everything else to FastAPI.

This is the same exchange as the hook's, behind ASGI: for requests that the hook hands on, and for all of them with the
setting `data_path: asgi`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router.api.door import HOT_PATHS, Door, DoorLimits, name_of
from router.api.problems import envelope, problem_headers
from router.api.sse import error_event
from router.contract.errors import BodyTooLarge, Draining, RequestTimeout, TandemError
from router.core.intake import Endpoint
from router.driver.exchange import Exchange
from router.legs.answer import Answer
from router.legs.connection import Headers

# Any: the ASGI specification types its messages as open dictionaries.
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Call = tuple[Scope, Receive, Send]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ABORT_EXTENSION = "tandem.abort"
"""Key of the scope's extensions under which our protocol offers to close the connection."""

QUEUE_BYTES = 64 * 1024
"""Queued bytes above which decode is held back."""


_HAS_BODY = frozenset({b"content-length", b"transfer-encoding"})


class Front:
    """Raw ASGI in front of `app`."""

    def __init__(self, door: Door, app: App) -> None:
        self._door = door
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        caller = self._door.gate.admit(scope["path"], headers)
        endpoint = HOT_PATHS.get(scope["path"].encode("utf-8", "replace")) if scope["method"] == "POST" else None
        if isinstance(caller, TandemError):
            client = AsgiClient()
            client.close_after = b"expect" in headers
            self._door.turn_away(client, endpoint or "", headers, caller)
            await client.run(send)
        elif endpoint is not None:
            await self._carry(endpoint, headers, caller, (scope, receive, send))
        elif _HAS_BODY.isdisjoint(headers):
            await self._pass_on(headers, (scope, receive, send))
        else:
            body = await self._take_body(headers, AsgiClient(), receive, send)
            if body is not None:
                await self._pass_on(headers, (scope, _replay(body, receive), send))

    async def _pass_on(self, headers: dict[bytes, bytes], call: Call) -> None:
        """The application answers, under the request's id. HEAD is a GET whose body the server leaves out."""
        scope, receive, send = call
        request_id = name_of(headers, self._door.router).encode("ascii")

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            await send(message)

        await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send_named)

    async def _take_body(
        self, headers: dict[bytes, bytes], client: AsgiClient, receive: Receive, send: Send
    ) -> bytes | None:
        """The whole body; or None, and the client has been answered, or has left."""
        try:
            return await _read_body(receive, headers, self._door.limits)
        except TandemError as error:
            # The rest of a body that is too large is read and dropped, so that the client can see the answer. One that
            # waits for `100 Continue` may never send it: only closing tells where its next request would begin.
            client.close_after = isinstance(error, RequestTimeout) or b"expect" in headers
            client.name(name_of(headers, self._door.router))
            client.refuse(error)
            await client.run(send)
            return None

    async def _carry(self, endpoint: Endpoint, headers: dict[bytes, bytes], caller: str, call: Call) -> None:
        scope, receive, send = call
        client = AsgiClient(scope.get("extensions", {}).get(ABORT_EXTENSION))
        body = await self._take_body(headers, client, receive, send)
        if body is None:
            return
        exchange = self._door.enter(client, endpoint, headers, body, caller)
        if exchange is None:
            await client.run(send)
            return
        client.exchange = exchange
        watch = asyncio.get_running_loop().create_task(_watch(receive, client))
        try:
            await client.run(send)
        finally:
            watch.cancel()
            client.leave()
            client.exchange = None  # no cycle: both are gone at once


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the whole body."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return again


async def _read_body(receive: Receive, headers: dict[bytes, bytes], limits: DoorLimits) -> bytes | None:
    """The whole body, or None when the client left before its end.

    Raises:
        BodyTooLarge, RequestTimeout: it is not worth waiting for the rest.
    """
    if int(headers.get(b"content-length", b"0")) > limits.max_body_bytes:
        raise _too_large(limits)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.arrival_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > limits.max_body_bytes:
                    raise _too_large(limits)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError as error:
        raise RequestTimeout("The request did not arrive in time; send it again.") from error


def _too_large(limits: DoorLimits) -> BodyTooLarge:
    return BodyTooLarge(f"The body is over {limits.max_body_bytes} bytes; send less at once.")


async def _watch(receive: Receive, client: AsgiClient) -> None:
    """Tell the exchange when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    client.leave()


class AsgiClient:
    """A ClientPort whose bytes wait in a queue for `run`, which sends them."""

    def __init__(self, abort: Callable[[], None] | None = None) -> None:
        """`abort` closes the connection at once, whatever is being sent; without it an answer is left incomplete."""
        self._abort = abort
        self.exchange: Exchange | None = None
        self.close_after = False
        """The connection is not to be used again."""
        self._id = b""
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._paused = False
        self._news = asyncio.Event()
        self._ended = False
        self._over = False

    async def run(self, send: Send) -> None:
        """Send what is queued until the answer has ended or been abandoned."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                message = self._queue.popleft()
                self._queued_bytes -= len(message.get("body", b""))
                await send(message)
                self._maybe_resume()
            if self._ended:
                return

    def leave(self) -> None:
        """The client is gone, if it has not been answered."""
        if not self._over:
            self._finish()
            self._queue.clear()
            if self.exchange is not None:
                self.exchange.on_client_gone()

    def _finish(self) -> None:
        self._over = self._ended = True
        self._news.set()

    def _maybe_resume(self) -> None:
        if self._paused and self._queued_bytes < QUEUE_BYTES // 4 and not self._over:
            self._paused = False
            if self.exchange is not None:
                self.exchange.on_client_resumed()

    def _put(self, message: Message) -> None:
        self._queue.append(message)
        self._queued_bytes += len(message.get("body", b""))
        self._news.set()
        if self._queued_bytes > QUEUE_BYTES and not self._paused and self.exchange is not None:
            self._paused = True
            self.exchange.on_client_paused()

    # ClientPort.

    def name(self, request_id: str) -> None:
        """The answer will carry this X-Request-Id."""
        self._id = request_id.encode("ascii")

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        """Queue the head."""
        own = [*headers, (b"x-request-id", self._id)]
        if length is not None:
            own.append((b"content-length", b"%d" % length))
        if self.close_after:
            own.append((b"connection", b"close"))
        self._put({"type": "http.response.start", "status": status, "headers": own})

    def write(self, body: bytes, *, ended: bool) -> None:
        """Queue the bytes."""
        if ended:
            self._over = self._ended = True
        self._put({"type": "http.response.body", "body": body, "more_body": not ended})

    def chunk_writer(self) -> None:
        """ASGI servers frame bodies themselves."""

    def answer(self, answer: Answer) -> None:
        """Queue it as a whole."""
        self.begin(answer.status, answer.headers, len(answer.body))
        self.write(answer.body, ended=True)

    def refuse(self, error: TandemError) -> None:
        """Queue the error in its envelope."""
        if isinstance(error, Draining):
            self.close_after = True  # the next request would meet the same
        self.answer(Answer(error.http_status, problem_headers(error), envelope(error)))

    def break_off(self, error: TandemError, *, stream: bool) -> None:
        """End a stream with an error event; leave anything else incomplete, so that uvicorn cuts the connection."""
        if stream:
            self.write(error_event(error), ended=True)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Send nothing more, and close the connection; uvicorn closes that of an answer that is not complete."""
        self._queue.clear()
        self._finish()
        if self._abort is not None:
            self._abort()  # a `send` that waits for a client that takes nothing would wait for ever
