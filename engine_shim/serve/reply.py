"""Reply: one HTTP answer whose status is not committed before there is something to say."""

from __future__ import annotations

from starlette.types import Send

from engine_shim.serve import sse
from engine_shim.serve.problems import envelope, problem_headers
from router.contract.errors import TandemError

_JSON = ((b"content-type", b"application/json"),)

Headers = tuple[tuple[bytes, bytes], ...]


class Reply:
    """Writes an answer over ASGI."""

    def __init__(self, send: Send) -> None:
        """Nothing is sent yet."""
        self._send = send
        self._begun = False
        self.ended = False
        """The last byte of the answer has been written."""

    async def json(self, body: bytes, status: int = 200, headers: Headers = ()) -> None:
        """The answer is this JSON, whole."""
        length = ((b"content-length", str(len(body)).encode()),)
        await self._begin(status, _JSON + length + headers)
        await self._write(body, last=True)

    async def events(self, payload: bytes, *, last: bool, headers: Headers = ()) -> None:
        """These events are written; the status and `headers` go out before the first of them."""
        if not self._begun:
            await self._begin(200, sse.HEADERS + headers)
        await self._write(payload, last=last)

    async def pass_on(self, status: int, headers: Headers, piece: bytes, *, last: bool) -> None:
        """Somebody else's answer goes on; its status and `headers` go out before the first piece."""
        if not self._begun:
            await self._begin(status, headers)
        await self._write(piece, last=last)

    async def fail(self, error: TandemError) -> None:
        """The client hears of the error: by an HTTP status, or, once events flow, by a last event and no end mark."""
        if self.ended:
            return
        if self._begun:
            await self._write(sse.event_of_json(envelope(error)), last=True)
            return
        headers = tuple((name.encode(), value.encode()) for name, value in problem_headers(error).items())
        await self.json(envelope(error), error.http_status, headers)

    async def _begin(self, status: int, headers: Headers) -> None:
        self._begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def _write(self, body: bytes, *, last: bool) -> None:
        self.ended = last
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
