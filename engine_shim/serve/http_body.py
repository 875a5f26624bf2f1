"""Request bodies from ASGI messages, within a size and a time."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from router.contract.errors import BodyTooLarge, RequestTimeout

BODY_FOR_S = 30.0


class ClientGone(Exception):
    """The client has closed its connection; nobody is left to answer."""


def headers_of(scope: Scope) -> dict[str, str]:
    """Request headers by lower-case name; of a repeated header the last one counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: it is over `max_bytes`, as declared or as received; no more of it is read.
        RequestTimeout: it did not arrive within BODY_FOR_S.
        ClientGone: the client left before its end.
    """
    declared = headers_of(scope).get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(BODY_FOR_S):
            return await _read(receive, max_bytes)
    except TimeoutError as error:
        raise RequestTimeout(f"The body did not arrive within {BODY_FOR_S:g} s; send it faster.") from error


async def _read(receive: Receive, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is over {max_bytes} bytes; send a shorter one.")
