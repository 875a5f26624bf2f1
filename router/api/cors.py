"""Cors: lets pages of chosen origins call from a browser (the Fetch standard, CORS protocol).

A browser asks before it sends a key (preflight), so the question needs none; and it hides every answer that does not
name its origin, so refusals and streams name it like all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.api.front import App, Message, Receive, Scope, Send

ANY = "*"
_MAX_AGE_S = 600
_METHODS = b"GET, POST, OPTIONS"
_ASKED_METHOD, _ASKED_HEADERS = b"access-control-request-method", b"access-control-request-headers"
_VARY = (b"vary", b"Origin")
_EXPOSED = (b"access-control-expose-headers", b"X-Request-Id, Retry-After")


class Cors:
    """Raw ASGI around `app`."""

    def __init__(self, app: App, origins: Sequence[str]) -> None:
        """`origins` as browsers send them, `https://ui.example`; `*` stands for all."""
        self._app = app
        self._any = ANY in origins
        self._origins = frozenset(origin.encode("ascii", "replace") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight; let an answer to an allowed origin name it."""
        headers: Mapping[bytes, bytes] = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = headers.get(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            await self._app(scope, receive, send)
            return
        allowed = (b"access-control-allow-origin", b"*" if self._any else origin)
        if scope["method"] == "OPTIONS" and _ASKED_METHOD in headers:
            await _answer_preflight(send, allowed, headers.get(_ASKED_HEADERS, b""))
            return

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], allowed, _EXPOSED, _VARY]}
            await send(message)

        await self._app(scope, receive, send_named)


async def _answer_preflight(send: Send, allowed: tuple[bytes, bytes], wanted: bytes) -> None:
    headers = [
        allowed,
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"%d" % _MAX_AGE_S),
        _VARY,
    ]
    if wanted:
        headers.append((b"access-control-allow-headers", wanted))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
